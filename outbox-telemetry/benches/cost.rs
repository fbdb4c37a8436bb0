//! What telemetry costs per event: processor time of the whole process, with nothing watched, with metrics, with traces.
//!
//! Run with `cargo bench -p outbox-telemetry --bench cost -- [EVENTS] [ROUNDS]` (100000, 7). Ways take turns; the least of
//! each counts. Events have one handler that does nothing, and a source in memory: everything else is the relay's.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has to panic")]

use std::sync::Arc;

use jiff::Timestamp;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData, SpanExporter,
};
use outbox_core::memory::MemorySource;
use outbox_core::telemetry::Metrics;
use outbox_core::{Context, Envelope, Event, EventId, EventType, HandlerError, Payload, Relay};
use outbox_inproc::Registry;
use outbox_telemetry::{PrometheusText, TraceLinks};
use rustix::time::{ClockId, clock_gettime};
use tracing_subscriber::layer::SubscriberExt;

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: u64,
}
impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

/// Takes spans in batches, as exporters do, and forgets them.
#[derive(Debug)]
struct Forgetful;

impl SpanExporter for Forgetful {
    async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
        Ok(())
    }
}

fn stored(events: usize) -> Arc<MemorySource> {
    let source = MemorySource::new();
    for n in 0..events {
        let event_type = EventType::new(OrderPlaced::EVENT_TYPE).unwrap();
        let payload = Payload::from_json(format!(r#"{{"order":{n}}}"#));
        let id = EventId::new();
        let mut event = Envelope::new(id, event_type, payload, Timestamp::now());
        // A trace of its own, or samplers would keep all or none.
        let traceparent = format!("00-{}-b7ad6b7169203331-01", id.as_uuid().simple());
        event.headers.insert("traceparent".to_owned(), traceparent);
        source.publish_envelope(event);
    }
    Arc::new(source)
}

/// Seconds of processor time until all are delivered.
async fn drain(events: usize, metrics: Option<Arc<dyn Metrics>>) -> f64 {
    let source = stored(events);
    let handlers = Registry::new().on("nothing", async |_: OrderPlaced, _: Context| {
        Ok::<(), HandlerError>(())
    });
    let relay = Relay::builder(Arc::clone(&source) as _, Arc::new(handlers.build().unwrap()));
    let relay = match metrics {
        Some(metrics) => relay.metrics(metrics),
        None => relay,
    };
    let relay = relay.span_links(TraceLinks::default()).build().unwrap();
    let start = cpu();
    let relay = relay.spawn();
    while source.counts().pending > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    relay.shutdown().await.unwrap();
    cpu() - start
}

fn cpu() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// The same with a span for each try and each handler, of which the sampler keeps its share.
async fn traced(events: usize, sampler: Sampler) -> f64 {
    // Room for all of them: spans that are dropped cost less.
    let all = BatchConfigBuilder::default().with_max_queue_size(events * 2);
    let provider = SdkTracerProvider::builder()
        .with_sampler(sampler)
        .with_span_processor(
            BatchSpanProcessor::builder(Forgetful)
                .with_batch_config(all.build())
                .build(),
        )
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("cost"));
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let spent = drain(events, None).await;
    let sending = cpu();
    provider.shutdown().unwrap();
    spent + cpu() - sending
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut args = std::env::args().skip(1).filter_map(|arg| arg.parse().ok());
    let (events, rounds): (usize, usize) = (args.next().unwrap_or(100_000), args.next().unwrap_or(7));
    let metrics = PrometheusText::new().metrics();
    let ways = [
        "nothing",
        "metrics",
        "traces, none kept",
        "traces, 1 of 100",
        "traces, all",
    ];
    let mut best = [f64::INFINITY; 5];
    for _ in 0..rounds {
        for (way, best) in best.iter_mut().enumerate() {
            let spent = match way {
                0 => drain(events, None).await,
                1 => drain(events, Some(Arc::clone(&metrics) as _)).await,
                2 => traced(events, Sampler::AlwaysOff).await,
                3 => traced(events, Sampler::TraceIdRatioBased(0.01)).await,
                _ => traced(events, Sampler::AlwaysOn).await,
            };
            *best = best.min(spent);
        }
    }
    for (way, best) in ways.iter().zip(best) {
        println!("{way:<20} {:>6.2} µs per event", best / events as f64 * 1e6);
    }
}
