//! How outcomes reach the source: two calls at a time, those of a claim one after the other.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::MemorySource;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, Listening, Relay, Settled, Settlement, Source, SourceError, Wakeup,
};
use tokio::sync::Semaphore;

use crate::world::{Scripted, event, keyed, source, until};

/// A source that takes its time to settle: each call waits for a permit.
struct Slow {
    inner: Arc<MemorySource>,
    permits: Semaphore,
    calls: Mutex<Calls>,
}

/// The calls under way by claim, and the most that were under way at once: of all claims, and of one.
#[derive(Default)]
struct Calls {
    by_claim: HashMap<ClaimToken, usize>,
    now: usize,
    most: usize,
    most_of_one: usize,
}

impl Slow {
    fn new(permits: usize) -> Self {
        Self {
            inner: source(),
            permits: Semaphore::new(permits),
            calls: Mutex::default(),
        }
    }

    fn begin(&self, tokens: &HashSet<ClaimToken>) {
        let mut calls = self.calls.lock().unwrap();
        calls.now += 1;
        calls.most = calls.most.max(calls.now);
        for token in tokens {
            let of_one = calls.by_claim.entry(*token).or_default();
            *of_one += 1;
            let of_one = *of_one;
            calls.most_of_one = calls.most_of_one.max(of_one);
        }
    }

    fn end(&self, tokens: &HashSet<ClaimToken>) {
        let mut calls = self.calls.lock().unwrap();
        calls.now -= 1;
        for token in tokens {
            *calls.by_claim.entry(*token).or_default() -= 1;
        }
    }
}

#[async_trait]
impl Source for Slow {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        self.inner.claim(request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        let tokens: HashSet<_> = settlements.iter().map(|settlement| settlement.token).collect();
        self.begin(&tokens);
        self.permits.acquire().await.unwrap().forget();
        tokio::time::sleep(Duration::from_millis(5)).await;
        let settled = self.inner.settle(settlements).await;
        self.end(&tokens);
        settled
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
async fn a_settlement_that_takes_long_does_not_hold_up_that_of_the_next_claim() {
    let slow = Arc::new(Slow::new(0));
    let relay = Relay::builder(slow.clone(), Arc::new(Scripted::default()))
        .batch_size(NonZeroU32::MIN)
        .build()
        .unwrap()
        .spawn();
    for _ in 0..3 {
        slow.inner.publish_envelope(event("Plain"));
    }

    until("two calls are under way", || slow.calls.lock().unwrap().now == 2).await;
    // More are not, though there are outcomes of a third claim.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(slow.calls.lock().unwrap().now, 2);
    slow.permits.add_permits(3);

    until("all are recorded", || slow.inner.counts().completed == 3).await;
    relay.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn outcomes_of_one_claim_are_recorded_one_call_after_the_other() {
    let slow = Arc::new(Slow::new(Semaphore::MAX_PERMITS));
    // Ends of deliveries are spread, so that each claim is recorded by several calls.
    let dispatcher = Scripted::default().on("Plain", async |_| {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..40))).await;
        Ok(())
    });
    for n in 0..300 {
        slow.inner.publish_envelope(keyed("Plain", &(n % 20).to_string()));
    }
    let relay = Relay::builder(slow.clone(), Arc::new(dispatcher))
        .build()
        .unwrap()
        .spawn();

    until("all are recorded", || slow.inner.counts().completed == 300).await;
    relay.shutdown().await.unwrap();

    let calls = slow.calls.lock().unwrap();
    assert_eq!((calls.most, calls.most_of_one), (2, 1));
}
