//! How a relay stops: in bounded time, with nothing left half-marked.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::world::{Faults, Faulty, Scripted, event, keyed, source, until};
use outbox_core::memory::Counts;
use outbox_core::{FailureKind, Relay};
use tokio::time::Instant;

const GRACE: Duration = Duration::from_secs(4);

fn held(counts: Counts) -> usize {
    counts.held
}

#[tokio::test(start_paused = true)]
async fn an_idle_relay_stops_at_once() {
    let relay = Relay::builder(source(), Arc::new(Scripted::default()))
        .build()
        .unwrap()
        .spawn();
    tokio::time::sleep(Duration::from_secs(60)).await;

    let start = Instant::now();
    relay.shutdown().await.unwrap();

    assert!(
        start.elapsed() < Duration::from_millis(10),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn running_handlers_get_the_grace_period_and_their_results_are_recorded() {
    let source = source();
    let dispatcher = Scripted::default().on("Short", |_| async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok(())
    });
    let dispatcher = Arc::new(dispatcher);
    for _ in 0..30 {
        source.publish_envelope(event("Short"));
    }
    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .concurrency(NonZeroU32::new(10).unwrap())
        .shutdown_grace(GRACE)
        .build()
        .unwrap()
        .spawn();
    until("ten are running", || dispatcher.seen().len() == 10).await;

    let start = Instant::now();
    let report = relay.shutdown().await.unwrap();

    assert!(start.elapsed() < GRACE, "{:?}", start.elapsed());
    assert_eq!(report.completed, 10);
    assert_eq!(dispatcher.seen().len(), 10, "nothing is begun after the stop");
    let counts = source.counts();
    assert_eq!((counts.pending, counts.held), (20, 0), "the rest is due at once");
}

#[tokio::test(start_paused = true)]
async fn a_stop_begins_nothing_more_of_a_run() {
    let source = source();
    let dispatcher = Scripted::default().on("Short", |_| async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    });
    let dispatcher = Arc::new(dispatcher);
    for _ in 0..10 {
        source.publish_envelope(keyed("Short", "k"));
    }
    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .shutdown_grace(GRACE)
        .build()
        .unwrap()
        .spawn();
    until("the second is running", || dispatcher.seen().len() == 2).await;

    let start = Instant::now();
    let report = relay.shutdown().await.unwrap();

    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!((report.completed, report.released, report.stuck), (2, 8, 0));
    let counts = source.counts();
    assert_eq!((counts.pending, counts.held), (8, 0), "the rest is due at once");
}

#[tokio::test(start_paused = true)]
async fn handlers_that_outlast_the_grace_period_are_called_off_and_charged_nothing() {
    let source = source();
    let dispatcher =
        Scripted::default()
            .on("Hangs", |_| std::future::pending())
            .on("Cooperates", |delivery| async move {
                delivery.cancelled.cancelled().await;
                Err(FailureKind::Retry)
            });
    let dispatcher = Arc::new(dispatcher);
    let envelopes = [
        event("Hangs"),
        event("Cooperates"),
        keyed("Hangs", "k"),
        keyed("Plain", "k"),
    ];
    for envelope in &envelopes {
        source.publish_envelope(envelope.clone());
    }
    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .shutdown_grace(GRACE)
        .build()
        .unwrap()
        .spawn();
    until("three are running", || dispatcher.seen().len() == 3).await;

    let start = Instant::now();
    let report = relay.shutdown().await.unwrap();

    let took = start.elapsed();
    assert!(GRACE <= took && took < GRACE + Duration::from_secs(1), "{took:?}");
    assert_eq!((report.released, report.left_claimed), (4, 0), "{report:?}");
    assert_eq!(held(source.counts()), 0);
    for envelope in &envelopes {
        assert_eq!(source.failed_attempts(envelope.id), Some(0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_request_ends_the_grace_period() {
    let source = source();
    let dispatcher = Arc::new(Scripted::default().on("Hangs", |_| std::future::pending()));
    source.publish_envelope(event("Hangs"));
    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .shutdown_grace(Duration::from_secs(3_000))
        .build()
        .unwrap()
        .spawn();
    until("it runs", || dispatcher.seen().len() == 1).await;

    let start = Instant::now();
    relay.stop();
    tokio::time::sleep(Duration::from_secs(1)).await;
    relay.stop();
    relay.join().await.unwrap();

    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(held(source.counts()), 0);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_hangs_delays_the_stop_by_the_stated_constant_at_most() {
    for faults in [
        Faults {
            hang_settle: true,
            ..Faults::none()
        },
        Faults {
            hang_claim: true,
            ..Faults::none()
        },
    ] {
        let memory = source();
        let faulty = Arc::new(Faulty::new(memory.clone()));
        let dispatcher = Arc::new(Scripted::default());
        for _ in 0..10 {
            memory.publish_envelope(event("Plain"));
        }
        faulty.set(faults);
        let relay = Relay::builder(faulty.clone(), dispatcher)
            .shutdown_grace(GRACE)
            .build()
            .unwrap()
            .spawn();
        tokio::time::sleep(Duration::from_secs(2)).await;

        let start = Instant::now();
        relay.shutdown().await.unwrap();

        let took = start.elapsed();
        assert!(took <= GRACE + Relay::STOP_SLACK, "{took:?}");
    }
}

/// Invariant 38: however long the source has failed, a stop records what it can.
#[tokio::test(start_paused = true)]
async fn a_stop_records_at_once_what_a_failing_source_did_not_take() {
    for seed in 0..100 {
        fastrand::seed(seed);
        let memory = source();
        let faulty = Arc::new(Faulty::new(memory.clone()));
        memory.publish_envelope(event("Plain"));
        faulty.set(Faults {
            fail_settle: true,
            ..Faults::none()
        });
        let relay = Relay::builder(faulty.clone(), Arc::new(Scripted::default()))
            .build()
            .unwrap()
            .spawn();
        // Until the waits between its tries have grown as long as they get.
        tokio::time::sleep(Duration::from_secs(60)).await;

        faulty.set(Faults::none());
        let report = relay.shutdown().await.unwrap();

        assert_eq!((report.completed, report.left_claimed), (1, 0), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_relay_at_any_moment_leaves_what_its_leases_end() {
    for after_ms in (0..60).map(|step| step * 7) {
        let source = source();
        let dispatcher = Scripted::default().on("Slow", |_| async {
            tokio::time::sleep(Duration::from_millis(40)).await;
            Ok(())
        });
        for number in 0..50 {
            source.publish_envelope(keyed("Slow", &format!("k{}", number % 7)));
        }
        let relay = Relay::builder(source.clone(), Arc::new(dispatcher))
            .build()
            .unwrap();
        let health = relay.health();

        let run = relay.run_until(std::future::pending());
        let dropped = tokio::time::timeout(Duration::from_millis(after_ms), run).await;
        assert!(dropped.is_err());
        assert!(
            health.has_ended() || after_ms == 0,
            "health tells of a relay that is gone"
        );

        let next = Relay::builder(source.clone(), Arc::new(Scripted::default()))
            .build()
            .unwrap()
            .spawn();
        until("the next relay completes all", || source.counts().completed == 50).await;
        next.shutdown().await.unwrap();
    }
}
