//! What is measured: the documented names, with figures that equal a recount of the rows.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::memory::MemorySource;
use outbox_core::telemetry::{Metrics, OutcomeLabel};
use outbox_core::{
    Context, Envelope, Event, EventId, EventType, HandlerError, Listening, Payload, Relay, RetryPolicy,
};
use outbox_inproc::Registry;
use outbox_pg::admin::PgAdmin;
use outbox_pg::{Names, PgSource};
use outbox_telemetry::{Backlog, LABELS_MAX, OtelMetrics, PrometheusText};
use support::{Collected, Meters, World};
use tokio::sync::Notify;

macro_rules! events {
    ($($name:ident),*) => {$(
        #[derive(serde::Serialize, serde::Deserialize)]
        struct $name;
        impl Event for $name {
            const EVENT_TYPE: &'static str = stringify!($name);
        }
    )*};
}
events!(Good, Flaky, Hopeless, Bad, Nobody, Slow, Remote);

/// What the first table of docs/telemetry.md promises: name, kind, unit, labels.
fn documented() -> BTreeSet<(String, String, String, BTreeSet<String>)> {
    let text = include_str!("../../docs/telemetry.md");
    let table = text
        .lines()
        .skip_while(|line| !line.starts_with("| Metric |"))
        .skip(2);
    table
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let labels = cells[3].split(", ").filter(|label| *label != "–");
            let plain = |cell: &str| cell.trim_matches('`').to_owned();
            (
                plain(cells[0]),
                plain(cells[1]),
                plain(cells[2]),
                labels.map(plain).collect(),
            )
        })
        .collect()
}

struct Stage {
    handlers: Registry,
    started: Arc<Notify>,
    go_on: Arc<Notify>,
}

/// Handlers that succeed, fail once, fail for ever, reject, meet an outage once, and wait to be told.
fn stage() -> Stage {
    let (started, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begun, told) = (Arc::clone(&started), Arc::clone(&go_on));
    let (waited, was_down) = (Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let handlers = Registry::new()
        .on("good", async |_: Good, _: Context| Ok(()))
        .on("bad", async |_: Bad, _: Context| Err(HandlerError::reject("no")))
        .on("flaky", async |_: Flaky, ctx: Context| match ctx.attempt() {
            1 => Err(HandlerError::retry("not yet")),
            _ => Ok(()),
        })
        .on("hopeless", async |_: Hopeless, _: Context| {
            Err(HandlerError::retry("never"))
        })
        .on("remote", move |_: Remote, _: Context| {
            let down = !was_down.swap(true, Ordering::Relaxed);
            std::future::ready(if down {
                Err(HandlerError::outage("down"))
            } else {
                Ok(())
            })
        })
        .on("slow", move |_: Slow, _: Context| {
            let (begun, told, waited) = (Arc::clone(&begun), Arc::clone(&told), Arc::clone(&waited));
            async move {
                if !waited.swap(true, Ordering::Relaxed) {
                    begun.notify_one();
                    told.notified().await;
                }
                Ok::<(), HandlerError>(())
            }
        });
    Stage {
        handlers,
        started,
        go_on,
    }
}

#[tokio::test]
async fn a_run_emits_what_is_documented_and_the_figures_equal_a_recount() {
    let world = World::new().await;
    let meters = Meters::new();
    let metrics = Arc::new(OtelMetrics::new(&meters.meter()));
    let Stage {
        handlers,
        started,
        go_on,
    } = stage();
    let source = PgSource::builder(world.database.connect_options())
        .start()
        .await
        .unwrap();
    let relay = Relay::builder(Arc::new(source), Arc::new(handlers.build().unwrap()))
        .metrics(Arc::clone(&metrics) as Arc<dyn Metrics>)
        .retry(RetryPolicy::fixed(
            3.try_into().unwrap(),
            Duration::from_millis(10),
        ))
        .build()
        .unwrap();
    let health = relay.health();
    let relay = relay.spawn();

    for _ in 0..5 {
        world.publish(&Good).await;
    }
    for _ in 0..3 {
        world.publish(&Flaky).await;
    }
    for _ in 0..2 {
        world.publish(&Bad).await;
        world.publish(&Hopeless).await;
    }
    for _ in 0..4 {
        world.publish(&Nobody).await;
    }
    world.publish(&Remote).await;
    world.until("status <> 'pending'", 17).await;
    // A claim that is lost while its handler runs: its event is delivered again.
    world.publish(&Slow).await;
    started.notified().await;
    world
        .run("UPDATE outbox.outbox_lease SET until = clock_timestamp()")
        .await;
    go_on.notify_one();
    world.until("status = 'completed'", 14).await;
    // A claim that fails: one of the next after its connections are gone. Not surely the first, which finds no connection if the
    // pool was about to look at the one that was given back.
    while meters.collect().sum("outbox_poll_errors_total") < 1.0 {
        world
            .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox-relay' AND datname = current_database()")
            .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.publish(&Good).await;
    world.until("status = 'completed'", 15).await;
    while health.listening() != Listening::Up {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let admin = PgAdmin::new(world.database.pool().clone(), &Names::default());
    let now = admin.gauges(1000).await.unwrap();
    metrics.backlog(Backlog {
        pending: now.pending,
        oldest_seconds: now.oldest_seconds,
        failed: now.failed,
    });
    let report = relay.shutdown().await.unwrap();

    let collected = meters.collect();
    assert_eq!(collected.shapes(), documented());
    let settled = |event_type: &str, outcome: &str| {
        collected.value(
            "dispatcher_events_total",
            &[("event_type", event_type), ("outcome", outcome)],
        )
    };
    for (event_type, outcome, events) in [
        ("Good", "completed", 6.0),
        ("Flaky", "retry", 3.0),
        ("Flaky", "completed", 3.0),
        ("Hopeless", "retry", 4.0),
        ("Hopeless", "failed", 2.0),
        ("Bad", "failed", 2.0),
        ("Nobody", "unhandled", 4.0),
        ("Slow", "completed", 1.0),
        ("Remote", "released", 1.0),
        ("Remote", "completed", 1.0),
    ] {
        assert_eq!(settled(event_type, outcome), events, "{event_type} {outcome}");
    }
    recount(&world, &collected).await;
    assert_eq!(collected.sum("dispatcher_batch_size"), report.claimed as f64);
    assert_eq!(
        collected.count("outbox_lag_seconds"),
        collected.sum("dispatcher_events_total")
    );
    assert_eq!(collected.sum("outbox_claims_lost_total"), report.lost as f64);
    assert!(report.lost >= 1, "{report:?}");
    assert!(collected.sum("outbox_poll_errors_total") >= 1.0);
    assert_eq!(collected.sum("outbox_failed_events"), 4.0);
    assert_eq!(collected.sum("outbox_pending_events"), 0.0);
    assert_eq!(collected.sum("outbox_oldest_pending_seconds"), 0.0);
    assert_eq!(collected.sum("outbox_listener_up"), 1.0);
    assert_eq!(
        collected.value("outbox_breaker_state", &[("event_type", "Remote")]),
        0.0
    );
    let tries = [
        ("good", "completed", 6.0),
        ("flaky", "retry", 3.0),
        ("flaky", "completed", 3.0),
        // What it asked for, not what was left to it.
        ("hopeless", "retry", 6.0),
        ("bad", "failed", 2.0),
        ("remote", "released", 1.0),
        ("remote", "completed", 1.0),
        ("slow", "completed", 2.0),
    ];
    for (handler, outcome, tries) in tries {
        let labels = [("handler", handler), ("outcome", outcome)];
        let counted = collected.count_of("dispatcher_handler_seconds", &labels);
        assert_eq!(counted, tries, "{handler} {outcome}");
    }
    assert_eq!(collected.count("dispatcher_handler_seconds"), 24.0);
}

/// The table's own account, by type: completed, failed, and failed attempts.
async fn recount(world: &World, collected: &Collected) {
    let rows: Vec<(String, i64, i64, i64)> = sqlx::query_as(
        "SELECT event_type, count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status = 'failed'),
            sum(retry_count) FROM outbox.outbox GROUP BY event_type",
    )
    .fetch_all(world.database.pool())
    .await
    .unwrap();
    for (event_type, completed, failed, attempts) in rows {
        let of = |outcome: &str| {
            let labels = [("event_type", event_type.as_str()), ("outcome", outcome)];
            collected.value("dispatcher_events_total", &labels)
        };
        assert_eq!(
            of("completed") + of("unhandled"),
            completed as f64,
            "{event_type}"
        );
        assert_eq!(of("failed"), failed as f64, "{event_type}");
        assert_eq!(of("retry") + of("failed"), attempts as f64, "{event_type}");
    }
}

#[tokio::test]
async fn ten_thousand_hostile_event_types_make_a_bounded_number_of_labels() {
    let meters = Meters::new();
    let metrics = OtelMetrics::new(&meters.meter()).with_known_types(["Good"]);
    let source = Arc::new(MemorySource::new());
    for n in 0..10_000 {
        let hostile = EventType::new(format!("x{n}\"}} 1 # {}", "y".repeat(100))).unwrap();
        let payload = Payload::from_json("1");
        source.publish_envelope(Envelope::new(
            EventId::new(),
            hostile,
            payload,
            jiff::Timestamp::now(),
        ));
    }
    source.publish(&Good).unwrap();
    let handlers = Registry::new().on("good", async |_: Good, _: Context| Ok::<(), HandlerError>(()));

    let relay = Relay::builder(Arc::clone(&source) as _, Arc::new(handlers.build().unwrap()))
        .metrics(Arc::new(metrics))
        .build()
        .unwrap()
        .spawn();
    while source.counts().pending > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    relay.shutdown().await.unwrap();

    let collected = meters.collect();
    let types: BTreeMap<String, f64> = collected
        .of("dispatcher_events_total")
        .map(|point| (point.labels["event_type"].clone(), point.value))
        .collect();
    assert_eq!(types.len(), LABELS_MAX + 1);
    assert_eq!(types["Good"], 1.0);
    assert_eq!(types["other"], 10_000.0 - (LABELS_MAX as f64 - 1.0));
    let most = collected.labels("event_type");
    assert!(
        most.len() <= LABELS_MAX + 1,
        "{} event types in some metric",
        most.len()
    );
}

#[test]
fn what_is_counted_without_labels_begins_at_zero() {
    let meters = Meters::new();
    let _metrics = OtelMetrics::new(&meters.meter());

    let collected = meters.collect();

    for name in ["outbox_claims_lost_total", "outbox_poll_errors_total"] {
        let values: Vec<f64> = collected.of(name).map(|point| point.value).collect();
        assert_eq!(values, [0.0], "{name}");
    }
}

#[test]
fn what_cannot_be_decoded_has_a_label_of_its_own_however_many_types_there_are() {
    let meters = Meters::new();
    let types: Vec<String> = (0..LABELS_MAX).map(|n| n.to_string()).collect();
    let metrics = OtelMetrics::new(&meters.meter()).with_known_types(types);

    metrics.settled(None, OutcomeLabel::Failed, None);

    let labels = [("event_type", "undecodable")];
    assert_eq!(meters.collect().value("dispatcher_events_total", &labels), 1.0);
}

#[test]
fn prometheus_gets_the_names_as_they_are_documented() {
    let text = PrometheusText::new();
    let metrics = text.metrics();
    let event_type = EventType::new("Order\"Placed\\").unwrap();

    metrics.claimed(3);
    metrics.settled(
        Some(&event_type),
        OutcomeLabel::Completed,
        Some(Duration::from_millis(20)),
    );
    metrics.backlog(Backlog {
        pending: 7,
        oldest_seconds: 1.5,
        failed: 2,
    });

    let page = text.render();
    assert!(page.contains("outbox_pending_events 7"), "{page}");
    assert!(page.contains("outbox_lag_seconds_bucket{"), "{page}");
    assert!(page.contains("outbox_lag_seconds_sum"), "{page}");
    assert!(page.contains("dispatcher_batch_size_count"), "{page}");
    let settled = page
        .lines()
        .find(|line| line.starts_with("dispatcher_events_total{"))
        .expect(&page);
    assert!(
        settled.contains("event_type=\"Order\\\"Placed\\\\\"") && settled.ends_with(" 1"),
        "{settled}"
    );
}
