//! The relay on the in-memory source, with time under control.

mod world;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::memory::Status;
use outbox_core::{FailureKind, Policy, Relay, RetryPolicy};
use tokio::time::Instant;
use world::{Scripted, event, keyed, source, until};

#[tokio::test(start_paused = true)]
async fn every_event_is_delivered_and_completed() {
    let source = source();
    let dispatcher = Arc::new(Scripted::default());
    for _ in 0..2_000 {
        source.publish_envelope(event("Plain"));
    }

    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("all completed", || source.counts().completed == 2_000).await;
    let report = relay.shutdown().await.unwrap();

    assert_eq!(report.completed, 2_000);
    assert_eq!(dispatcher.seen().len(), 2_000);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_delays_no_other_event() {
    let source = source();
    let dispatcher = Scripted::default().on("Slow", |_| async {
        tokio::time::sleep(Duration::from_secs(15)).await;
        Ok(())
    });
    let dispatcher = Arc::new(dispatcher);
    let slow = event("Slow");
    let slow_id = slow.id;
    source.publish_envelope(slow);
    for _ in 0..10_000 {
        source.publish_envelope(event("Plain"));
    }

    let start = Instant::now();
    let relay = Relay::builder(source.clone(), dispatcher)
        .build()
        .unwrap()
        .spawn();
    until("the fast ones are completed", || {
        source.counts().completed == 10_000
    })
    .await;
    let took = start.elapsed();
    until("the slow one too", || {
        source.status(slow_id) == Some(Status::Completed)
    })
    .await;
    relay.shutdown().await.unwrap();

    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn events_of_one_key_are_delivered_in_order_and_one_at_a_time() {
    let source = source();
    let running = Arc::new(AtomicUsize::new(0));
    let dispatcher = Scripted::default().on("Keyed", move |delivery| {
        let running = running.clone();
        async move {
            assert_eq!(
                running.fetch_add(1, Ordering::SeqCst),
                0,
                "two of one key at once"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            if delivery.attempt < 3 {
                Err(FailureKind::Retry)
            } else {
                Ok(())
            }
        }
    });
    let dispatcher = Arc::new(dispatcher);
    let events: Vec<_> = (0..20).map(|_| keyed("Keyed", "k")).collect();
    for event in &events {
        source.publish_envelope(event.clone());
    }

    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("all completed", || source.counts().completed == 20).await;
    relay.shutdown().await.unwrap();

    let seen = dispatcher.seen();
    let expected: Vec<_> = events.iter().flat_map(|event| [event.id; 3]).collect();
    assert_eq!(seen.iter().map(|seen| seen.id).collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_counted_from_one() {
    let source = source();
    let twice = RetryPolicy::fixed(NonZeroU32::new(2).unwrap(), Duration::from_secs(1));
    let dispatcher = Scripted::default()
        .on("Bad", |_| async { Err(FailureKind::Retry) })
        .policy("Bad", Policy::default().with_retry(twice));
    let dispatcher = Arc::new(dispatcher);
    let bad = event("Bad");
    let id = bad.id;
    source.publish_envelope(bad);

    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("given up", || source.status(id) == Some(Status::Failed)).await;
    relay.shutdown().await.unwrap();

    let attempts: Vec<_> = dispatcher.seen().iter().map(|seen| seen.attempt).collect();
    assert_eq!(attempts, [1, 2]);
    assert_eq!(source.last_error(id).as_deref(), Some("as the script says"));
}
