//! Records per second of the guarded pipeline against the obvious idempotent producer; and events per second from Postgres
//! to a topic, against the claims alone and that producer alone. In one run, in turns, medians of five.
//!
//! Run with `cargo bench -p outbox-kafka --features client`, or one part of it by its name: `-- guard`, `-- postgres`. On
//! librdkafka's mock cluster: the broker costs next to nothing, so what is compared is the clients.
//! `OUTBOX_KAFKA_BOOTSTRAP` names a real cluster instead, which needs a topic `throughput`.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has to panic")]

#[path = "../../tests/support/event.rs"]
#[expect(dead_code, reason = "the tests use more of it")]
mod event;
#[path = "../../tests/support/naive.rs"]
mod naive;
mod postgres;

use std::sync::Arc;
use std::time::{Duration, Instant};

use event::{Id, envelope};
use naive::NaiveDispatcher;
use outbox_core::{Delivery, Dispatcher};
use outbox_kafka::{DispatcherOptions, KafkaDispatcher, KafkaSettings, RecordMapping, TopicName, TopicRule};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;

const TOPIC: &str = "throughput";
const KEYS: u32 = 200;
const RUN: u64 = 25;
const ROUNDS: u64 = 20;
const REPETITIONS: usize = 5;

fn mapping() -> RecordMapping {
    RecordMapping::new(TopicRule::fixed(TopicName::new(TOPIC).unwrap()))
}

/// Every key delivers its runs one after the other, all keys at once.
async fn measure(dispatcher: &Arc<dyn Dispatcher>) -> f64 {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    let runs: Vec<Vec<Delivery>> = (0..KEYS)
        .map(|key| {
            (0..RUN)
                .map(|n| Delivery::new(envelope(Id { key, n }), deadline))
                .collect()
        })
        .collect();
    let start = Instant::now();
    let keys: Vec<_> = runs
        .into_iter()
        .map(|run| {
            let dispatcher = Arc::clone(dispatcher);
            tokio::spawn(async move {
                for _ in 0..ROUNDS {
                    let results = dispatcher.dispatch_run(&run).await;
                    assert!(results.len() == run.len() && results.iter().all(Result::is_ok));
                }
            })
        })
        .collect();
    for key in keys {
        key.await.unwrap();
    }
    (u64::from(KEYS) * RUN * ROUNDS) as f64 / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn guarded(bootstrap: &str) -> Arc<dyn Dispatcher> {
    let settings = KafkaSettings::new(bootstrap);
    Arc::new(KafkaDispatcher::new(&settings, mapping(), DispatcherOptions::default()).unwrap())
}

fn naive(bootstrap: &str) -> Arc<dyn Dispatcher> {
    let extra = [
        ("linger.ms", "2"),
        ("message.timeout.ms", "30000"),
        ("batch.size", "500000"),
    ];
    Arc::new(NaiveDispatcher::new(bootstrap, mapping(), &extra))
}

async fn compare(what: &str, bootstrap: &str) {
    let (guarded, naive) = (guarded(bootstrap), naive(bootstrap));
    // The first of each is for warming up.
    measure(&guarded).await;
    measure(&naive).await;
    let (mut of_guarded, mut of_naive) = (Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        of_guarded.push(measure(&guarded).await);
        of_naive.push(measure(&naive).await);
    }
    let (of_guarded, of_naive) = (median(of_guarded), median(of_naive));
    println!(
        "{what}: guarded {of_guarded:.0}/s, naive {of_naive:.0}/s, ratio {:.2}",
        of_guarded / of_naive
    );
}

/// The address of a cluster whose broker is so far away.
fn cluster(round_trip: u64) -> MockCluster<'static, DefaultProducerContext> {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic(TOPIC, 8, 1).unwrap();
    if round_trip > 0 {
        cluster
            .broker_round_trip_time(-1, Duration::from_millis(round_trip))
            .unwrap();
    }
    cluster
}

async fn guard(real: Option<&str>) {
    if let Some(bootstrap) = real {
        return compare("real cluster", bootstrap).await;
    }
    for round_trip in [0, 2, 20] {
        let cluster = cluster(round_trip);
        let what = format!("round trip {round_trip} ms");
        compare(&what, &cluster.bootstrap_servers()).await;
    }
}

async fn postgres(real: Option<&str>) {
    if let Some(bootstrap) = real {
        return postgres::compare("real cluster", bootstrap).await;
    }
    let cluster = cluster(2);
    postgres::compare("round trip 2 ms", &cluster.bootstrap_servers()).await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|name| !name.starts_with('-'))
        .collect();
    let wanted = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let real = std::env::var("OUTBOX_KAFKA_BOOTSTRAP").ok();
    runtime.block_on(async {
        if wanted("guard") {
            guard(real.as_deref()).await;
        }
        if wanted("postgres") {
            postgres(real.as_deref()).await;
        }
    });
}
