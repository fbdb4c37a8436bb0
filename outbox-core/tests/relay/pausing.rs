//! What an operator pauses while a relay has it in hand and has not begun it.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::MemorySource;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, Delivered, Delivery, Dispatcher, Envelope, EventId, EventType,
    Failure, Listening, Policy, Position, Relay, RunResult, Settled, Settlement, Source, SourceError, Wakeup,
};

use crate::world::{Scripted, event, keyed, source, until};

/// A source of which the type `Slow` can be paused.
struct Pausable {
    inner: Arc<MemorySource>,
    paused: AtomicBool,
    slow: Mutex<HashMap<Position, ClaimToken>>,
}

impl Pausable {
    fn new(inner: &Arc<MemorySource>) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::clone(inner),
            paused: AtomicBool::new(false),
            slow: Mutex::default(),
        })
    }
}

#[async_trait]
impl Source for Pausable {
    async fn claim(&self, mut request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        if self.paused.load(Ordering::SeqCst) {
            request.excluded_types.push(EventType::new("Slow").unwrap());
        }
        let claimed = self.inner.claim(request).await?;
        let is_slow = |event: &&Claimed| {
            let envelope = event.envelope.as_ref();
            envelope.is_ok_and(|envelope| envelope.event_type.as_str() == "Slow")
        };
        let slow = claimed.iter().filter(is_slow);
        self.slow
            .lock()
            .unwrap()
            .extend(slow.map(|event| (event.position, event.token)));
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        self.inner.settle(settlements).await
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        self.inner.extend(tokens, lease).await
    }

    async fn paused(&self, tokens: &[ClaimToken]) -> Result<Vec<(ClaimToken, Position)>, SourceError> {
        if !self.paused.load(Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        let slow = self.slow.lock().unwrap();
        let asked = slow.iter().filter(|(_, token)| tokens.contains(token));
        Ok(asked.map(|(position, token)| (*token, *position)).collect())
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        self.inner.wait(timeout).await
    }

    fn listening(&self) -> Listening {
        self.inner.listening()
    }
}

/// Takes a second for each event, in runs too.
#[derive(Default)]
struct Whole {
    begun: Mutex<Vec<EventId>>,
    calls: Mutex<Vec<usize>>,
}

#[async_trait]
impl Dispatcher for Whole {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.dispatch_run(std::slice::from_ref(delivery)).await.remove(0)
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        self.calls.lock().unwrap().push(run.len());
        let mut results = Vec::new();
        for delivery in run {
            assert!(!delivery.cancelled.is_cancelled(), "called off before it began");
            self.begun.lock().unwrap().push(delivery.envelope.id);
            tokio::time::sleep(Duration::from_secs(1)).await;
            results.push(Ok(Delivered::Handled));
        }
        results
    }

    fn pipelines(&self) -> bool {
        true
    }
}

/// A hundred slow events, paused while the third is at work. What was delivered in the end, in order of its beginning.
async fn a_pause_reaches(slow: impl Fn() -> Envelope, policy: Policy) {
    let source = source();
    let pausable = Pausable::new(&source);
    let dispatcher = Scripted::default()
        .policy("Slow", policy)
        .on("Slow", |delivery| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(
                !delivery.cancelled.is_cancelled(),
                "what had begun was called off"
            );
            Ok(())
        });
    let dispatcher = Arc::new(dispatcher);
    let events: Vec<_> = (0..100).map(|_| slow()).collect();
    let ids: Vec<EventId> = events.iter().map(|event| event.id).collect();
    for event in events {
        source.publish_envelope(event);
    }
    let relay = Relay::builder(pausable.clone(), dispatcher.clone())
        .poll_timeout(Duration::from_secs(5))
        .build()
        .unwrap()
        .spawn();
    until("the third is at work", || dispatcher.seen().len() == 3).await;
    assert!(source.counts().held > 50, "the others are in hand already");

    pausable.paused.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(30)).await;

    let begun = dispatcher.seen().len();
    assert!(
        begun <= 3 + 6,
        "{begun} have begun, of which three before the pause"
    );
    assert_eq!(source.counts().completed, begun, "what had begun was finished");
    assert_eq!(source.counts().held, 0, "the rest went back");

    pausable.paused.store(false, Ordering::SeqCst);
    until("all are completed", || source.counts().completed == 100).await;
    relay.shutdown().await.unwrap();
    let seen: Vec<EventId> = dispatcher.seen().into_iter().map(|seen| seen.id).collect();
    assert_eq!(seen, ids, "each once, in order");
}

#[tokio::test(start_paused = true)]
async fn a_pause_reaches_what_waits_behind_another_of_its_key() {
    a_pause_reaches(|| keyed("Slow", "hot"), Policy::default()).await;
}

#[tokio::test(start_paused = true)]
async fn a_pause_reaches_what_waits_for_a_place_in_its_type() {
    let policy = Policy::default().with_concurrency(NonZeroU32::MIN);
    a_pause_reaches(|| event("Slow"), policy).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_delivered_whole_is_finished() {
    let source = source();
    let pausable = Pausable::new(&source);
    let dispatcher = Arc::new(Whole::default());
    for _ in 0..10 {
        source.publish_envelope(keyed("Slow", "hot"));
    }
    let relay = Relay::builder(pausable.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("the first is at work", || {
        !dispatcher.begun.lock().unwrap().is_empty()
    })
    .await;

    pausable.paused.store(true, Ordering::SeqCst);
    until("all are completed", || source.counts().completed == 10).await;

    relay.shutdown().await.unwrap();
    assert_eq!(*dispatcher.calls.lock().unwrap(), [10]);
}
