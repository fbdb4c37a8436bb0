//! Handlers under a real relay on the in-memory source, with time under control.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::memory::{MemorySource, Status};
use outbox_core::telemetry::{Metrics, OutcomeLabel};
use outbox_core::{Context, Event, EventId, EventType, HandlerError, PartName, Relay, RelayHandle, TenantId};
use outbox_inproc::{Registry, Unhandled};

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderLost {}

impl Event for OrderLost {
    const EVENT_TYPE: &'static str = "OrderLost";
}

async fn succeed(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

fn relay(source: &Arc<MemorySource>, registry: Registry) -> RelayHandle {
    let dispatcher = registry.build().unwrap();
    Relay::builder(source.clone(), Arc::new(dispatcher))
        // Shorter than the handler timeout, so that a stop calls off what hangs.
        .shutdown_grace(Duration::from_secs(5))
        .build()
        .unwrap()
        .spawn()
}

/// Waits, on the test's paused clock, until the condition holds.
async fn until(condition: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to that");
}

#[tokio::test(start_paused = true)]
async fn only_the_failing_handler_runs_again_until_the_event_is_completed() {
    let source = Arc::new(MemorySource::new());
    let runs: Arc<[AtomicU32; 10]> = Arc::default();
    let mut registry = Registry::new();
    for n in 0..10 {
        let runs = Arc::clone(&runs);
        registry = registry.on::<OrderPlaced>(format!("handler-{n}"), move |_: OrderPlaced, _: Context| {
            let run = runs[n].fetch_add(1, Ordering::Relaxed);
            async move {
                if n == 4 && run < 2 {
                    Err("not yet".into())
                } else {
                    Ok(())
                }
            }
        });
    }
    let id = source.publish(&OrderPlaced {}).unwrap();

    let relay = relay(&source, registry);
    until(|| source.status(id) == Some(Status::Completed)).await;
    relay.shutdown().await.unwrap();

    let runs: Vec<u32> = runs.iter().map(|runs| runs.load(Ordering::Relaxed)).collect();
    assert_eq!(runs, [1, 1, 1, 1, 3, 1, 1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_named_in_the_stored_error() {
    let source = Arc::new(MemorySource::new());
    let registry = Registry::new()
        .on::<OrderPlaced>("quick", succeed)
        .on::<OrderPlaced>("slow", |_: OrderPlaced, _: Context| std::future::pending());
    let id = source.publish(&OrderPlaced {}).unwrap();

    let relay = relay(&source, registry);
    until(|| source.failed_attempts(id) == Some(1)).await;
    relay.shutdown().await.unwrap();

    assert_eq!(
        source.last_error(id).as_deref(),
        Some("handler slow: timed out after 20s")
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_keeps_what_was_done_and_charges_nothing() {
    let source = Arc::new(MemorySource::new());
    let runs = Arc::new(AtomicU32::new(0));
    let quick = Arc::clone(&runs);
    let registry = || {
        let quick = Arc::clone(&quick);
        Registry::new().on::<OrderPlaced>("quick", move |_: OrderPlaced, _: Context| {
            quick.fetch_add(1, Ordering::Relaxed);
            async { Ok(()) }
        })
    };
    let hangs = |_: OrderPlaced, _: Context| std::future::pending();
    let id = source.publish(&OrderPlaced {}).unwrap();

    let first = relay(&source, registry().on::<OrderPlaced>("slow", hangs));
    until(|| runs.load(Ordering::Relaxed) == 1).await;
    first.shutdown().await.unwrap();
    assert_eq!(
        (source.status(id), source.failed_attempts(id)),
        (Some(Status::Pending), Some(0))
    );
    let second = relay(&source, registry().on::<OrderPlaced>("slow", succeed));
    until(|| source.status(id) == Some(Status::Completed)).await;
    second.shutdown().await.unwrap();

    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_redriven_event_goes_to_the_handler_that_refused_it() {
    let source = Arc::new(MemorySource::new());
    let fixed = Arc::new(AtomicU32::new(0));
    let refusing = Arc::clone(&fixed);
    let registry = Registry::new()
        .on::<OrderPlaced>("refuses", move |_: OrderPlaced, _: Context| {
            let fixed = refusing.load(Ordering::Relaxed) == 1;
            async move {
                if fixed {
                    Ok(())
                } else {
                    Err(HandlerError::reject("no such customer"))
                }
            }
        })
        .on::<OrderPlaced>("fails", |_: OrderPlaced, ctx: Context| async move {
            // Uses up all attempts in the first cycle; then the refusal is still on record.
            if ctx.attempt() <= 10
                && ctx
                    .state::<Arc<AtomicU32>>()
                    .ok_or("none")?
                    .load(Ordering::Relaxed)
                    == 0
            {
                Err("not yet".into())
            } else {
                Ok(())
            }
        })
        .state(Arc::clone(&fixed));
    let id = source.publish(&OrderPlaced {}).unwrap();

    let relay = relay(&source, registry);
    until(|| source.status(id) == Some(Status::Failed)).await;
    let error = source.last_error(id).unwrap();
    fixed.store(1, Ordering::Relaxed);
    assert!(source.redrive(&TenantId::default(), id));
    until(|| source.status(id) == Some(Status::Completed)).await;
    relay.shutdown().await.unwrap();

    assert_eq!(
        error,
        "handler refuses: refused the event in an earlier try: no such customer; handler fails: not yet"
    );
}

#[derive(Default)]
struct Recorded {
    handled: Mutex<BTreeSet<(String, String, &'static str)>>,
    released: AtomicU32,
}

impl Metrics for Recorded {
    fn settled(&self, _: Option<&EventType>, outcome: OutcomeLabel, _: Option<Duration>) {
        if outcome == OutcomeLabel::Released {
            self.released.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn handled(&self, event_type: &EventType, part: &PartName, outcome: OutcomeLabel, _: Duration) {
        let row = (event_type.to_string(), part.to_string(), outcome.as_str());
        self.handled.lock().unwrap().insert(row);
    }
}

#[tokio::test(start_paused = true)]
async fn each_handler_is_measured() {
    let source = Arc::new(MemorySource::new());
    let metrics = Arc::new(Recorded::default());
    let registry = Registry::new()
        .on::<OrderPlaced>("succeeds", succeed)
        .on::<OrderPlaced>("refuses", |_: OrderPlaced, _: Context| async {
            Err(HandlerError::reject("no"))
        });
    let id = source.publish(&OrderPlaced {}).unwrap();

    let relay = Relay::builder(source.clone(), Arc::new(registry.build().unwrap()))
        .metrics(metrics.clone())
        .build()
        .unwrap()
        .spawn();
    until(|| source.status(id) == Some(Status::Failed)).await;
    relay.shutdown().await.unwrap();

    let row = |handler: &str, outcome| ("OrderPlaced".to_owned(), handler.to_owned(), outcome);
    let expected = BTreeSet::from([row("refuses", "failed"), row("succeeds", "completed")]);
    assert_eq!(*metrics.handled.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_held_event_waits_for_a_handler_without_being_looked_at_all_the_time() {
    let source = Arc::new(MemorySource::new());
    let metrics = Arc::new(Recorded::default());
    let registry = Registry::new()
        .unhandled(Unhandled::Hold(Duration::from_secs(60)))
        .on::<OrderPlaced>("billing", succeed);
    let id: EventId = source.publish(&OrderLost {}).unwrap();

    let relay = Relay::builder(source.clone(), Arc::new(registry.build().unwrap()))
        .metrics(metrics.clone())
        .build()
        .unwrap()
        .spawn();
    tokio::time::sleep(Duration::from_secs(150)).await;
    relay.shutdown().await.unwrap();

    assert_eq!(
        (source.status(id), source.failed_attempts(id)),
        (Some(Status::Pending), Some(0))
    );
    assert_eq!(metrics.released.load(Ordering::Relaxed), 3);
}
