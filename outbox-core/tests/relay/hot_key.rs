//! Many events of one ordering key, or of a type with a limit of its own: few are at work at a time, and they must not
//! keep the others waiting.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::MemorySource;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, Envelope, Listening, Policy, Relay, Settled, Settlement, Source,
    SourceError, Wakeup,
};

use crate::world::{Scripted, event, keyed, source, until};

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// A source that counts how often it is asked.
struct Counting {
    inner: Arc<MemorySource>,
    claims: AtomicUsize,
}

#[async_trait]
impl Source for Counting {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        self.claims.fetch_add(1, Ordering::SeqCst);
        self.inner.claim(request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        self.inner.settle(settlements).await
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        self.inner.extend(tokens, lease).await
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        self.inner.wait(timeout).await
    }

    fn listening(&self) -> Listening {
        self.inner.listening()
    }
}

#[tokio::test(start_paused = true)]
async fn others_are_delivered_while_the_first_of_a_hot_key_is_at_work() {
    others_are_delivered_beside(|| keyed("Slow", "hot"), Policy::default()).await;
}

#[tokio::test(start_paused = true)]
async fn others_are_delivered_while_a_limited_type_is_at_work() {
    let policy = Policy::default().with_concurrency(number(1));
    others_are_delivered_beside(|| event("Slow"), policy).await;
}

async fn others_are_delivered_beside(slow: impl Fn() -> Envelope, policy: Policy) {
    let source = source();
    let dispatcher = Scripted::default().policy("Slow", policy).on("Slow", |_| async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        Ok(())
    });
    for _ in 0..3_000 {
        source.publish_envelope(slow());
    }
    for other in 0..30 {
        source.publish_envelope(keyed("Plain", &format!("k{other}")));
        source.publish_envelope(event("Plain"));
    }
    let start = tokio::time::Instant::now();
    let relay = Relay::builder(source.clone(), Arc::new(dispatcher))
        .concurrency(number(10))
        .build()
        .unwrap()
        .spawn();

    until("the others are completed", || source.counts().completed >= 60).await;

    let took = start.elapsed();
    relay.stop();
    relay.shutdown().await.unwrap();
    assert!(took < Duration::from_secs(15), "{took:?}");
}

/// Invariant 43.
#[tokio::test(start_paused = true)]
async fn what_waits_behind_hot_keys_is_bounded() {
    let source = source();
    let dispatcher = Arc::new(Scripted::default().on("Hangs", |_| std::future::pending()));
    for event in 0..5_000 {
        source.publish_envelope(keyed("Hangs", &format!("k{}", event / 100)));
    }
    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .concurrency(number(20))
        .batch_size(number(15))
        .build()
        .unwrap()
        .spawn();
    tokio::time::sleep(Duration::from_secs(5)).await;

    let (held, at_work) = (source.counts().held, dispatcher.seen().len());
    relay.stop();
    relay.shutdown().await.unwrap();

    assert_eq!(held, 20 + 2 * 15, "concurrency and two batches");
    assert!(at_work > 1, "{at_work} keys at work");
}

#[tokio::test(start_paused = true)]
async fn a_hot_key_alone_is_not_asked_for_while_it_is_in_hand() {
    let source = source();
    let counting = Arc::new(Counting {
        inner: source.clone(),
        claims: AtomicUsize::new(0),
    });
    let dispatcher = Scripted::default().on("Slow", |_| async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(())
    });
    for _ in 0..1_000 {
        source.publish_envelope(keyed("Slow", "hot"));
    }
    let relay = Relay::builder(counting.clone(), Arc::new(dispatcher))
        .build()
        .unwrap()
        .spawn();

    until("all are completed", || source.counts().completed == 1_000).await;

    relay.shutdown().await.unwrap();
    let claims = counting.claims.load(Ordering::SeqCst);
    assert!(claims < 50, "{claims} claims for ten runs");
}
