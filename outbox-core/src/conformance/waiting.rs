//! Clause 13.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::Harness;
use super::cases::{Case, LONG};
use crate::Wakeup;

/// Clause 13.
pub async fn wait_returns_after_its_timeout(harness: &dyn Harness) {
    let case = Case::new(harness);
    let slack = Duration::from_secs(5);

    let start = Instant::now();
    let returned = timeout(LONG, async {
        // Hints may be left over from the making of the source; in the end there is a wait without one. As a relay does, this
        // looks after each.
        while case.source.wait(Duration::from_millis(200)).await == Wakeup::Hint {
            case.expect_nothing_due("nothing is published").await;
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "hints without an end, and nothing published"
            );
        }
    });
    assert!(returned.await.is_ok(), "wait never returned");

    let start = Instant::now();
    case.source.wait(Duration::from_millis(200)).await;
    assert!(
        start.elapsed() < Duration::from_millis(200) + slack,
        "{:?}",
        start.elapsed()
    );
}

/// Clause 13: an idle source is told of an event long before the timeout, and then the event can be claimed.
pub async fn wait_returns_early_when_an_event_is_published(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.expect_nothing_due("nothing is published yet").await;
    let source = harness.source();
    let start = Instant::now();
    let waiting = tokio::spawn(async move { source.wait(LONG).await });
    tokio::task::yield_now().await;

    let id = case.publish("Plain").await;

    let woken = timeout(harness.patience(), waiting).await;
    assert!(woken.is_ok(), "no hint within {:?}", start.elapsed());
    assert_eq!(case.claim_one(LONG).await.id, id);
}
