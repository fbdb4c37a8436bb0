//! What becomes of events that a relay delivers.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::world::{Scripted, event, keyed, source, until};
use outbox_core::memory::Status;
use outbox_core::{EventId, FailureKind, Policy, Relay, RetryPolicy, Undecodable};
use tokio::time::Instant;

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

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_its_event_alone() {
    struct PanicsInDrop;
    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let source = source();
    let dispatcher = Scripted::default()
        .on("Panics", |_| async { panic!("on purpose") })
        .on("PanicsInDrop", |_| async {
            let _bomb = PanicsInDrop;
            std::future::pending::<()>().await;
            Ok(())
        })
        .policy("Panics", once())
        .policy("PanicsInDrop", once());
    let (panics, panics_in_drop) = (event("Panics"), event("PanicsInDrop"));
    let ids = [panics.id, panics_in_drop.id];
    source.publish_envelope(panics);
    source.publish_envelope(panics_in_drop);
    for _ in 0..50 {
        source.publish_envelope(event("Plain"));
    }

    let relay = Relay::builder(source.clone(), Arc::new(dispatcher))
        .build()
        .unwrap()
        .spawn();
    until("all settled", || source.counts().pending == 0).await;
    relay.shutdown().await.unwrap();

    assert_eq!(source.counts().completed, 50);
    assert_eq!(source.last_error(ids[0]).as_deref(), Some("panicked: on purpose"));
    assert_eq!(source.last_error(ids[1]).as_deref(), Some("timed out after 20 s"));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_cancelled_dropped_and_tried_again() {
    let source = source();
    let dispatcher = Scripted::default()
        .on("Hangs", |_| std::future::pending())
        .on("Cooperates", |delivery| async move {
            delivery.cancelled.cancelled().await;
            Err(FailureKind::Retry)
        })
        .policy("Hangs", once().with_timeout(Duration::from_secs(3)))
        .policy("Cooperates", once().with_timeout(Duration::from_secs(2)));
    let (hangs, cooperates) = (event("Hangs"), event("Cooperates"));
    let ids = [hangs.id, cooperates.id];
    source.publish_envelope(hangs);
    source.publish_envelope(cooperates);

    let start = Instant::now();
    let relay = Relay::builder(source.clone(), Arc::new(dispatcher))
        .build()
        .unwrap()
        .spawn();
    until("both given up", || source.counts().failed == 2).await;
    let took = start.elapsed();
    relay.shutdown().await.unwrap();

    assert!(took < Duration::from_secs(4), "{took:?}");
    assert_eq!(source.last_error(ids[0]).as_deref(), Some("timed out after 3 s"));
    assert_eq!(source.last_error(ids[1]).as_deref(), Some("as the script says"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_kept_while_its_handler_outlasts_the_lease() {
    let source = source();
    let dispatcher = Scripted::default()
        .on("Long", |_| async {
            tokio::time::sleep(Duration::from_secs(100)).await;
            Ok(())
        })
        .policy("Long", once().with_timeout(Duration::from_secs(1_000)));
    let dispatcher = Arc::new(dispatcher);
    source.publish_envelope(event("Long"));

    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("completed", || source.counts().completed == 1).await;
    let report = relay.shutdown().await.unwrap();

    assert_eq!((report.lost, report.completed), (0, 1));
    assert_eq!(dispatcher.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_type_with_a_limit_of_its_own_keeps_to_it_and_delays_no_other() {
    let source = source();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen_most = most.clone();
    let dispatcher = Scripted::default()
        .on("Narrow", move |_| {
            let (running, most) = (running.clone(), most.clone());
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_secs(1)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
        })
        .policy(
            "Narrow",
            Policy::default().with_concurrency(NonZeroU32::new(3).unwrap()),
        );
    for _ in 0..30 {
        source.publish_envelope(event("Narrow"));
    }
    for _ in 0..500 {
        source.publish_envelope(event("Plain"));
    }

    let start = Instant::now();
    let relay = Relay::builder(source.clone(), Arc::new(dispatcher))
        .build()
        .unwrap()
        .spawn();
    until("the others are completed", || source.counts().completed >= 500).await;
    let others = start.elapsed();
    until("all completed", || source.counts().completed == 530).await;
    let all = start.elapsed();
    relay.shutdown().await.unwrap();

    assert_eq!(seen_most.load(Ordering::SeqCst), 3);
    assert!(others < Duration::from_secs(1), "{others:?}");
    assert!(
        all < Duration::from_secs(12),
        "30 events, 3 at a time, 1 s each took {all:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_charges_nothing_and_leaves_other_types_alone() {
    let source = source();
    let down = Arc::new(AtomicUsize::new(1));
    let switch = down.clone();
    let dispatcher = Scripted::default().on("Remote", move |_| {
        let down = down.load(Ordering::SeqCst) == 1;
        async move { if down { Err(FailureKind::Outage) } else { Ok(()) } }
    });
    let dispatcher = Arc::new(dispatcher);
    for _ in 0..300 {
        source.publish_envelope(event("Remote"));
    }

    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let tries = dispatcher.seen().len();
    source.publish_envelope(event("Plain"));
    until("the other type is delivered", || source.counts().completed == 1).await;
    switch.store(0, Ordering::SeqCst);
    until("all completed", || source.counts().completed == 301).await;
    relay.shutdown().await.unwrap();

    assert!(dispatcher.seen().iter().all(|seen| seen.attempt == 1));
    assert!(tries < 20_000, "{tries} tries in ten minutes of outage");
}

#[tokio::test(start_paused = true)]
async fn slow_handlers_hoard_no_events_that_another_relay_could_take() {
    let source = source();
    let dispatcher = Scripted::default().on("Slow", |_| async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        Ok(())
    });
    let dispatcher = Arc::new(dispatcher);
    for _ in 0..1_000 {
        source.publish_envelope(event("Slow"));
    }

    let ten = NonZeroU32::new(10).unwrap();
    let relay = Relay::builder(source.clone(), dispatcher)
        .concurrency(ten)
        .build()
        .unwrap()
        .spawn();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let held = source.counts().held;
        assert!(held <= 20, "{held} events held by a relay with 10 places");
    }
    relay.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_cannot_be_decoded_fails_alone() {
    let source = source();
    let broken = EventId::new();
    let why = Undecodable {
        reason: "damaged for the test".to_owned(),
        event_type: None,
    };
    source.publish_undecodable(broken, why);
    source.publish_envelope(event("Plain"));

    let relay = Relay::builder(source.clone(), Arc::new(Scripted::default()))
        .build()
        .unwrap()
        .spawn();
    until("both settled", || source.counts().pending == 0).await;
    relay.shutdown().await.unwrap();

    assert_eq!(source.status(broken), Some(Status::Failed));
    assert_eq!(
        source.last_error(broken).as_deref(),
        Some("event cannot be decoded: damaged for the test")
    );
    assert_eq!(source.counts().completed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_event_lets_the_rest_of_its_run_go_on_at_once() {
    let source = source();
    let dispatcher = Scripted::default().on("Bad", |_| async { Err(FailureKind::Reject) });
    let dispatcher = Arc::new(dispatcher);
    for number in 0..100 {
        source.publish_envelope(keyed(if number % 2 == 0 { "Bad" } else { "Good" }, "k"));
    }

    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("all settled", || source.counts().pending == 0).await;
    let report = relay.shutdown().await.unwrap();

    assert_eq!((report.failed, report.completed, report.released), (50, 50, 0));
}

fn once() -> Policy {
    Policy::default().with_retry(RetryPolicy::none())
}
