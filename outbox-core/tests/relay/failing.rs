//! A source that fails, in known ways.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::memory::Status;
use outbox_core::telemetry::{Metrics, OutcomeLabel};
use outbox_core::{ClaimRequest, EventType, FailureKind, Relay, Source};
use tokio::time::Instant;

use crate::world::{Faults, Faulty, Scripted, event, keyed, source, until};

#[derive(Default)]
struct Counted {
    poll_failures: AtomicUsize,
    lost: AtomicUsize,
    completed: AtomicUsize,
}

impl Metrics for Counted {
    fn poll_failed(&self) {
        self.poll_failures.fetch_add(1, Ordering::Relaxed);
    }

    fn claims_lost(&self, events: usize) {
        self.lost.fetch_add(events, Ordering::Relaxed);
    }

    fn settled(&self, _: Option<&EventType>, outcome: OutcomeLabel, _: Option<Duration>) {
        if outcome == OutcomeLabel::Completed {
            self.completed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_down_costs_no_attempt_and_is_found_again() {
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let (dispatcher, metrics) = (Arc::new(Scripted::default()), Arc::new(Counted::default()));
    let relay = Relay::builder(faulty.clone(), dispatcher.clone())
        .metrics(metrics.clone())
        .build()
        .unwrap()
        .spawn();
    let health = relay.health();
    until("it has polled", || health.is_healthy(3)).await;

    faulty.set(Faults {
        fail: true,
        ..Faults::none()
    });
    for _ in 0..50 {
        memory.publish_envelope(event("Plain"));
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tries = metrics.poll_failures.load(Ordering::Relaxed);
    assert!((10..60).contains(&tries), "{tries} claims in a minute of trouble");
    assert!(!health.is_healthy(3));
    assert_eq!(health.consecutive_poll_errors() as usize, tries);

    faulty.set(Faults::none());
    let back = Instant::now();
    until("all completed", || memory.counts().completed == 50).await;
    assert!(back.elapsed() < Duration::from_secs(6), "{:?}", back.elapsed());
    assert!(health.is_healthy(3));
    relay.shutdown().await.unwrap();
    assert!(dispatcher.seen().iter().all(|seen| seen.attempt == 1));
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_kept_while_they_cannot_be_recorded() {
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let dispatcher = Arc::new(Scripted::default());
    for _ in 0..20 {
        memory.publish_envelope(event("Plain"));
    }
    faulty.set(Faults {
        fail_settle: true,
        ..Faults::none()
    });
    let relay = Relay::builder(faulty.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();

    // Longer than the lease: the heartbeat keeps what waits to be recorded.
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(memory.counts().completed, 0);
    faulty.set(Faults::none());
    until("all recorded", || memory.counts().completed == 20).await;
    let report = relay.shutdown().await.unwrap();

    assert_eq!((report.completed, report.lost), (20, 0));
    assert_eq!(dispatcher.seen().len(), 20, "nothing was delivered twice");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_lost_is_no_lost_claim() {
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let (dispatcher, metrics) = (Arc::new(Scripted::default()), Arc::new(Counted::default()));
    for _ in 0..20 {
        memory.publish_envelope(keyed("Plain", "k"));
    }
    faulty.set(Faults {
        lose_settle_answer: true,
        ..Faults::none()
    });
    let relay = Relay::builder(faulty.clone(), dispatcher.clone())
        .metrics(metrics.clone())
        .build()
        .unwrap()
        .spawn();
    until("recorded, unknown to the relay", || {
        memory.counts().completed == 20
    })
    .await;
    faulty.set(Faults::none());
    memory.publish_envelope(keyed("Plain", "k"));
    until("all completed", || memory.counts().completed == 21).await;
    let report = relay.shutdown().await.unwrap();

    assert_eq!((report.completed, report.lost), (21, 0));
    assert_eq!(metrics.lost.load(Ordering::Relaxed), 0);
    assert_eq!(metrics.completed.load(Ordering::Relaxed), 21);
    assert_eq!(dispatcher.seen().len(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_fails_for_a_while_loses_nothing() {
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let dispatcher = Scripted::default()
        .on("Long", |_| async {
            tokio::time::sleep(Duration::from_secs(80)).await;
            Ok(())
        })
        .policy(
            "Long",
            outbox_core::Policy::default().with_timeout(Duration::from_secs(500)),
        );
    let dispatcher = Arc::new(dispatcher);
    memory.publish_envelope(event("Long"));
    let relay = Relay::builder(faulty.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("it runs", || dispatcher.seen().len() == 1).await;

    for _ in 0..3 {
        faulty.set(Faults {
            fail_extend: true,
            ..Faults::none()
        });
        tokio::time::sleep(Duration::from_secs(14)).await;
        faulty.set(Faults::none());
        tokio::time::sleep(Duration::from_secs(11)).await;
    }
    until("completed", || memory.counts().completed == 1).await;
    let report = relay.shutdown().await.unwrap();

    assert_eq!((dispatcher.seen().len(), report.lost), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_lost_calls_its_handler_off_and_charges_nothing() {
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let called_off = Arc::new(AtomicUsize::new(0));
    let counter = called_off.clone();
    let dispatcher = Scripted::default()
        .on("Long", move |delivery| {
            let counter = counter.clone();
            async move {
                if counter.load(Ordering::Relaxed) > 0 {
                    return Ok(());
                }
                delivery.cancelled.cancelled().await;
                counter.fetch_add(1, Ordering::Relaxed);
                Err(FailureKind::Retry)
            }
        })
        .policy(
            "Long",
            outbox_core::Policy::default().with_timeout(Duration::from_secs(500)),
        );
    let dispatcher = Arc::new(dispatcher);
    let long = event("Long");
    let id = long.id;
    memory.publish_envelope(long);
    faulty.set(Faults {
        fail_extend: true,
        ..Faults::none()
    });

    let start = Instant::now();
    let relay = Relay::builder(faulty.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("it was called off", || called_off.load(Ordering::Relaxed) == 1).await;
    let took = start.elapsed();
    until("it is delivered again", || {
        memory.status(id) == Some(Status::Completed)
    })
    .await;
    relay.shutdown().await.unwrap();

    assert!(
        took < Duration::from_secs(30),
        "called off {took:?} after a claim of 30 s"
    );
    assert_eq!(memory.failed_attempts(id), Some(0));
}

#[tokio::test(start_paused = true)]
async fn without_hints_an_event_is_delivered_within_the_poll_timeout() {
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    faulty.set(Faults {
        deaf: true,
        ..Faults::none()
    });
    let relay = Relay::builder(faulty, Arc::new(Scripted::default()))
        .build()
        .unwrap()
        .spawn();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let start = Instant::now();
    memory.publish_envelope(event("Plain"));

    until("completed", || memory.counts().completed == 1).await;
    relay.shutdown().await.unwrap();

    assert!(
        start.elapsed() <= Duration::from_millis(5_100),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_lone_claims_are_lost_is_given_up_and_its_neighbours_are_not() {
    let memory = source();
    let killer = event("Killer");
    let id = killer.id;
    memory.publish_envelope(killer);
    for _ in 0..9 {
        memory.publish_envelope(event("Plain"));
    }
    let lease = Duration::from_secs(1);
    let request = || ClaimRequest::new(NonZeroU32::new(100).unwrap(), lease);
    // A relay that dies with all of them, then again and again with the killer alone.
    memory.claim(request()).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(lease * 2).await;
        for claimed in memory.claim(request()).await.unwrap() {
            if claimed.id != id {
                let released = outbox_core::Settlement {
                    token: claimed.token,
                    position: claimed.position,
                    id: claimed.id,
                    outcome: outbox_core::Outcome::Released {
                        after: Duration::ZERO,
                        done: Vec::new(),
                    },
                };
                memory.settle(vec![released]).await.unwrap();
            }
        }
    }
    tokio::time::sleep(lease * 2).await;

    let dispatcher = Arc::new(Scripted::default());
    let relay = Relay::builder(memory.clone(), dispatcher.clone())
        .build()
        .unwrap()
        .spawn();
    until("all settled", || memory.counts().pending == 0).await;
    relay.shutdown().await.unwrap();

    assert_eq!(memory.counts().completed, 9);
    assert_eq!(memory.status(id), Some(Status::Failed));
    assert!(
        memory.last_error(id).unwrap().starts_with("worker lost"),
        "{:?}",
        memory.last_error(id)
    );
    assert!(
        dispatcher.seen().iter().all(|seen| seen.id != id),
        "it is given up before it can kill again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_listener_that_never_returns_or_panics_does_not_stop_the_polling() {
    for faults in [
        Faults {
            hang_wait: true,
            ..Faults::none()
        },
        Faults {
            panic_wait: true,
            ..Faults::none()
        },
    ] {
        let memory = source();
        let faulty = Arc::new(Faulty::new(memory.clone()));
        faulty.set(faults);
        let relay = Relay::builder(faulty, Arc::new(Scripted::default()))
            .build()
            .unwrap()
            .spawn();
        tokio::time::sleep(Duration::from_secs(12)).await;
        let start = Instant::now();
        memory.publish_envelope(event("Plain"));

        until("completed", || memory.counts().completed == 1).await;
        relay.shutdown().await.unwrap();

        assert!(start.elapsed() <= Duration::from_secs(6), "{:?}", start.elapsed());
    }
}
