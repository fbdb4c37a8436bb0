//! One trace, from a request to what follows from its events, over a restart of the process.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, TracerProvider};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use outbox_core::{
    Context, Event, EventType, HEADER_BYTES_MAX, HandlerError, NewEvent, Payload, Relay, RelayHandle,
};
use outbox_inproc::Registry;
use outbox_pg::{Names, PgPublisher, PgSource};
use outbox_telemetry::{TraceLinks, stamp};
use sqlx::PgPool;
use support::World;
use support::spans::{attribute, find, linked, process};
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced;
impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}
#[derive(serde::Serialize, serde::Deserialize)]
struct OrderBilled;
impl Event for OrderBilled {
    const EVENT_TYPE: &'static str = "OrderBilled";
}

fn publisher() -> PgPublisher {
    PgPublisher::new(&Names::default()).stamped(stamp)
}

async fn relay(world: &World, handlers: Registry) -> RelayHandle {
    let source = PgSource::builder(world.database.connect_options())
        .start()
        .await
        .unwrap();
    Relay::builder(Arc::new(source), Arc::new(handlers.build().unwrap()))
        .span_links(TraceLinks::default())
        .build()
        .unwrap()
        .spawn()
}

fn billing(pool: PgPool) -> Registry {
    Registry::new()
        .on("billing", move |_: OrderPlaced, ctx: Context| {
            let pool = pool.clone();
            async move {
                if ctx.attempt() == 1 {
                    return Err(HandlerError::retry_after(
                        Duration::from_millis(10),
                        "bank is closed",
                    ));
                }
                publisher()
                    .publish(&mut *pool.acquire().await?, &OrderBilled)
                    .await?;
                Ok(())
            }
        })
        .on("mail", async |_: OrderBilled, _: Context| Ok(()))
}

#[tokio::test]
async fn one_trace_spans_the_request_and_everything_that_follows_over_a_restart() {
    let world = World::new().await;

    let first = process();
    let request = tracing::info_span!("POST /orders");
    let headers = std::collections::HashMap::from([(
        "traceparent".to_owned(),
        format!("00-{TRACE}-b7ad6b7169203331-01"),
    )]);
    request
        .set_parent(TraceContextPropagator::new().extract(&headers))
        .unwrap();
    async {
        let mut connection = world.database.pool().acquire().await.unwrap();
        publisher().publish(&mut connection, &OrderPlaced).await.unwrap();
    }
    .instrument(request)
    .await;
    let before = first.end();

    let second = process();
    let relay = relay(&world, billing(world.database.pool().clone())).await;
    world.until("status = 'completed'", 2).await;
    relay.shutdown().await.unwrap();
    let after = second.end();

    let request = find(&before, "POST /orders")[0];
    let consumed = find(&after, "shared.consume_OrderPlaced");
    let billed = find(&after, "billing");
    let mailed = find(&after, "shared.consume_OrderBilled")[0];
    assert_eq!((consumed.len(), billed.len()), (2, 2), "two tries");
    for span in [&consumed[..], &billed[..], &[mailed, request]].concat() {
        assert_eq!(span.span_context.trace_id().to_string(), TRACE, "{}", span.name);
    }
    for (n, (delivery, handler)) in consumed.iter().zip(&billed).enumerate() {
        assert_eq!(delivery.parent_span_id, request.span_context.span_id());
        assert_eq!(delivery.span_kind, SpanKind::Consumer);
        assert_eq!(handler.parent_span_id, delivery.span_context.span_id());
        assert_eq!(attribute(delivery, "attempt"), (n + 1).to_string());
        assert_eq!(attribute(delivery, "outcome"), ["retry", "completed"][n]);
    }
    assert_eq!(linked(consumed[0]), []);
    assert_eq!(linked(consumed[1]), [consumed[0].span_context.span_id()]);
    assert!(
        attribute(billed[0], "exception.message").contains("bank is closed"),
        "{:?}",
        billed[0]
    );
    assert_eq!(mailed.parent_span_id, billed[1].span_context.span_id());
}

#[tokio::test]
async fn without_a_subscriber_nothing_is_stamped_and_everything_works() {
    let world = World::new().await;
    let mut connection = world.database.pool().acquire().await.unwrap();
    publisher().publish(&mut connection, &OrderBilled).await.unwrap();

    let relay = relay(&world, billing(world.database.pool().clone())).await;
    world
        .until("status = 'completed' AND headers::text = '{}'", 1)
        .await;
    relay.shutdown().await.unwrap();
}

/// Accepts everything and never answers.
#[derive(Debug)]
struct Deaf;

impl SpanExporter for Deaf {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        std::future::pending().await
    }
}

#[tokio::test]
async fn an_exporter_that_never_answers_stops_neither_the_relay_nor_its_end() {
    let world = World::new().await;
    let provider = SdkTracerProvider::builder().with_batch_exporter(Deaf).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let relay = relay(&world, billing(world.database.pool().clone())).await;
    for _ in 0..3000 {
        let _ = tracing::info_span!("filler").entered();
    }

    let mut connection = world.database.pool().acquire().await.unwrap();
    publisher().publish(&mut connection, &OrderPlaced).await.unwrap();
    world.until("status = 'completed'", 2).await;
    let stopping = Instant::now();
    relay.shutdown().await.unwrap();

    assert!(stopping.elapsed() < Relay::STOP_SLACK, "{:?}", stopping.elapsed());
    // Its end would wait for the exporter.
    std::mem::forget(provider);
}

#[test]
fn a_request_that_brings_more_than_fits_does_not_keep_an_event_from_being_published() {
    let process = process();
    let member = |n: usize| format!("{}{n:02}={}", "k".repeat(250), "v".repeat(250));
    let list = |members: usize| (0..members).map(member).collect::<Vec<_>>().join(",");
    let raw = || NewEvent::raw(EventType::new("OrderPlaced").unwrap(), Payload::from_json("1"));
    for (state, own) in [
        (32, 0),
        (20, 4096),
        (1, HEADER_BYTES_MAX - 200),
        (0, HEADER_BYTES_MAX - 10),
    ] {
        let request = tracing::info_span!("POST /orders");
        let headers = std::collections::HashMap::from([
            (
                "traceparent".to_owned(),
                format!("00-{TRACE}-b7ad6b7169203331-01"),
            ),
            ("tracestate".to_owned(), list(state)),
            ("baggage".to_owned(), list(8)),
        ]);
        let context = TraceContextPropagator::new().extract(&headers);
        let context = BaggagePropagator::new().extract_with_context(&context, &headers);
        request.set_parent(context).unwrap();

        let mut event = raw().with_header("x", "y".repeat(own.saturating_sub(1)));
        request.in_scope(|| stamp(&mut event.headers));

        event.check(100).unwrap();
        let traced = event.headers.contains_key("traceparent");
        assert_eq!(traced, own < HEADER_BYTES_MAX - 100, "{own}");
    }
    drop(process.end());
}
