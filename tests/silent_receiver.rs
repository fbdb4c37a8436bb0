//! A receiver of OTLP that accepts and never answers, while relay and exporters share one thread.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::{
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use opentelemetry::{metrics::MeterProvider, trace::TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter, WithExportConfig};
use opentelemetry_sdk::{
    metrics::{PeriodicReader, SdkMeterProvider},
    trace::SdkTracerProvider,
};
use outbox::{
    Context, Event, HandlerError, Names, OtelMetrics, PgPublisher, PgSource, Registry, Relay, TraceLinks,
    migrate, stamp,
};
use outbox_dev::TestDatabase;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tracing_subscriber::layer::SubscriberExt;

/// More than the exporter's queue has room for.
const EVENTS: usize = 3000;

#[derive(Serialize, Deserialize, Event)]
struct Told {
    n: usize,
}

/// Its address, and how many have connected.
fn silent_receiver() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    thread::spawn(move || {
        let mut open = Vec::new();
        for connection in listener.incoming() {
            open.push(connection);
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (address, accepted)
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn completed(pool: &PgPool) -> usize {
    let completed = "SELECT count(*) FROM outbox.outbox WHERE status = 'completed'";
    let completed: i64 = sqlx::query_scalar(completed).fetch_one(pool).await.unwrap();
    usize::try_from(completed).unwrap()
}

#[tokio::test(flavor = "current_thread")]
async fn the_relay_works_and_stops_in_time_while_nobody_answers_its_exporters() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let names = Names::default();
    migrate(&mut pool.acquire().await.unwrap(), &names).await.unwrap();
    let (address, accepted) = silent_receiver();
    let endpoint = format!("http://{address}");
    let spans = SpanExporter::builder().with_tonic().with_endpoint(&endpoint);
    let tracers = SdkTracerProvider::builder()
        .with_batch_exporter(spans.build().unwrap())
        .build();
    let figures = MetricExporter::builder().with_tonic().with_endpoint(&endpoint);
    let reader = PeriodicReader::builder(figures.build().unwrap()).with_interval(Duration::from_millis(50));
    let meters = SdkMeterProvider::builder().with_reader(reader.build()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(tracers.tracer("test"));
    let _subscriber = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));

    let source = PgSource::builder(database.connect_options())
        .start()
        .await
        .unwrap();
    let handlers = Registry::new().on("told", async |_: Told, _: Context| Ok::<(), HandlerError>(()));
    let relay = Relay::builder(Arc::new(source), Arc::new(handlers.build().unwrap()))
        .metrics(Arc::new(OtelMetrics::new(&meters.meter("outbox"))))
        .span_links(TraceLinks::default())
        .build()
        .unwrap()
        .spawn();
    let publisher = PgPublisher::new(&names).stamped(stamp);
    let mut published = 0;
    // On and on until both exporters hang, and then some more.
    until("the exporters did not connect", async || {
        let mut connection = pool.acquire().await.unwrap();
        let events: Vec<Told> = (0..EVENTS).map(|n| Told { n }).collect();
        publisher.publish_all(&mut connection, &events).await.unwrap();
        published += EVENTS;
        accepted.load(Ordering::Relaxed) >= 2
    })
    .await;
    until("not all delivered", async || completed(pool).await == published).await;

    let stopping = Instant::now();
    let report = relay.shutdown().await.unwrap();

    assert!(stopping.elapsed() < Relay::STOP_SLACK, "{:?}", stopping.elapsed());
    assert_eq!((report.completed, report.lost), (published as u64, 0));
    // Their end would wait for an answer.
    std::mem::forget((tracers, meters));
}
