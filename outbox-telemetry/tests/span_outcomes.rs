//! What the spans of deliveries say: one for each try, with the outcome that is recorded for it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::trace::SpanId;
use opentelemetry_sdk::trace::SpanData;
use outbox_core::memory::MemorySource;
use outbox_core::{
    Delivered, Delivery, Dispatcher, Envelope, EventId, EventType, Failure, FailureKind, OrderingKey,
    Payload, Relay, RetryPolicy, RunResult,
};
use outbox_telemetry::TraceLinks;
use support::spans::{attribute, find, linked, process};
use tracing::Instrument;

fn event(event_type: &str) -> Envelope {
    let event_type = EventType::new(event_type).unwrap();
    Envelope::new(
        EventId::new(),
        event_type,
        Payload::from_json("1"),
        jiff::Timestamp::now(),
    )
}

/// Delivers what waits, until nothing does; each event has so many tries.
async fn drain(source: Arc<MemorySource>, dispatcher: impl Dispatcher, tries: u32) {
    let retry = RetryPolicy::fixed(NonZeroU32::new(tries).unwrap(), Duration::from_millis(1));
    let relay = Relay::builder(Arc::clone(&source) as _, Arc::new(dispatcher))
        .retry(retry)
        .handler_timeout(Duration::from_millis(50))
        .span_links(TraceLinks::default())
        .build()
        .unwrap()
        .spawn();
    while source.counts().pending > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    relay.shutdown().await.unwrap();
}

/// Does what the event's type says.
struct Scripted;

#[async_trait]
impl Dispatcher for Scripted {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        match delivery.envelope.event_type.as_str() {
            "Good" => Ok(Delivered::Handled),
            "Nobody" => Ok(Delivered::Unhandled),
            "Rejected" => Err(Failure::new(FailureKind::Reject, "never")),
            "Failing" => Err(Failure::new(FailureKind::Retry, "not now")),
            "Panicking" => panic!("boom"),
            _ => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn a_span_tells_the_outcome_that_is_recorded_however_the_try_ended() {
    let source = Arc::new(MemorySource::new());
    let table = [
        ("Good", ["completed"].as_slice(), ""),
        ("Nobody", &["unhandled"], ""),
        ("Rejected", &["failed"], "never"),
        ("Failing", &["retry", "failed"], "not now"),
        ("Panicking", &["retry", "failed"], "panicked: boom"),
        ("Hanging", &["retry", "failed"], "timed out after 0.05 s"),
    ];
    for (event_type, ..) in table {
        source.publish_envelope(event(event_type));
    }

    let process = process();
    drain(source, Scripted, 2).await;
    let spans = process.end();

    for (event_type, outcomes, error) in table {
        let tries = find(&spans, &format!("shared.consume_{event_type}"));
        let told: Vec<_> = tries.iter().map(|span| attribute(span, "outcome")).collect();
        assert_eq!(told, outcomes, "{event_type}");
        for span in &tries {
            assert_eq!(attribute(span, "exception.message"), error, "{event_type}");
        }
        let former: Vec<SpanId> = tries.iter().map(|span| span.span_context.span_id()).collect();
        let links: Vec<SpanId> = tries.iter().flat_map(|span| linked(span)).collect();
        assert_eq!(
            links,
            former[..former.len() - 1],
            "{event_type}: retries are linked"
        );
    }
}

/// Delivers a run as a whole, with work of its own for each event. The third event fails once.
#[derive(Default)]
struct Pipeline(AtomicBool);

#[async_trait]
impl Dispatcher for Pipeline {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.dispatch_run(std::slice::from_ref(delivery)).await.remove(0)
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let mut results = RunResult::new();
        for delivery in run {
            async {}
                .instrument(tracing::info_span!(parent: &delivery.span, "sent"))
                .await;
            let third = delivery.envelope.event_type.as_str() == "Third";
            if third && !self.0.swap(true, Ordering::Relaxed) {
                results.push(Err(Failure::new(FailureKind::Retry, "once")));
                break;
            }
            results.push(Ok(Delivered::Handled));
        }
        results
    }

    fn pipelines(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn each_event_of_a_pipelined_run_has_a_span_of_its_own() {
    let source = Arc::new(MemorySource::new());
    let key = OrderingKey::new("order-1").unwrap();
    for event_type in ["First", "Second", "Third", "Fourth"] {
        let mut event = event(event_type);
        event.ordering_key = Some(key.clone());
        source.publish_envelope(event);
    }

    let process = process();
    drain(source, Pipeline::default(), 3).await;
    let spans = process.end();

    let consumed = |event_type: &str| find(&spans, &format!("shared.consume_{event_type}"));
    let outcomes = |event_type: &str| -> Vec<String> {
        let tries = consumed(event_type);
        tries.iter().map(|span| attribute(span, "outcome")).collect()
    };
    assert_eq!(outcomes("First"), ["completed"]);
    assert_eq!(outcomes("Second"), ["completed"]);
    assert_eq!(outcomes("Third"), ["retry", "completed"]);
    assert_eq!(outcomes("Fourth"), ["released", "completed"]);
    let third = consumed("Third");
    assert_eq!(linked(third[1]), [third[0].span_context.span_id()]);
    let sent_for = |consumed: &SpanData| {
        let below = |sent: &&&SpanData| sent.parent_span_id == consumed.span_context.span_id();
        find(&spans, "sent").iter().filter(below).count()
    };
    let events = ["First", "Second", "Third", "Fourth"];
    let sent: Vec<usize> = events
        .iter()
        .flat_map(|event_type| consumed(event_type))
        .map(sent_for)
        .collect();
    assert_eq!(sent, [1, 1, 1, 1, 0, 1], "work is below the event's own span");
}
