//! From Postgres to a topic.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_core::{
    Delivered, Delivery, Dispatcher, EventType, Failure, NewEvent, OrderingKey, Payload, Relay, RunResult,
};
use outbox_dev::{DevPostgres, ServerOptions, TestDatabase};
use outbox_pg::{Names, PgPublisher, PgSource, migrate};
use sqlx::Executor;

use super::{REPETITIONS, guarded, measure, median, naive};

const EVENTS: usize = 50_000;
const KEYS: usize = 10_000;
/// Deliveries that wait for the broker cost next to nothing, so there may be many: as `docs/module-extraction.md` advises.
const CONCURRENCY: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// Counts what a dispatcher delivers; without one, everything is delivered at once.
struct Counted {
    dispatcher: Option<Arc<dyn Dispatcher>>,
    delivered: AtomicUsize,
}

#[async_trait]
impl Dispatcher for Counted {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.dispatch_run(std::slice::from_ref(delivery)).await.remove(0)
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let results = match &self.dispatcher {
            Some(dispatcher) => dispatcher.dispatch_run(run).await,
            None => run.iter().map(|_| Ok(Delivered::Handled)).collect(),
        };
        assert!(
            results.len() == run.len() && results.iter().all(Result::is_ok),
            "{results:?}"
        );
        self.delivered.fetch_add(run.len(), Ordering::Release);
        results
    }

    fn pipelines(&self) -> bool {
        true
    }
}

/// An outbox with events of about 335 bytes and nothing else.
async fn fill(database: &TestDatabase) {
    let mut connection = database.pool().acquire().await.unwrap();
    connection
        .execute("TRUNCATE outbox.outbox, outbox.outbox_lease")
        .await
        .unwrap();
    let publisher = PgPublisher::new(&Names::default());
    for start in (0..EVENTS).step_by(1000) {
        let events = (start..start + 1000).map(|n| {
            let payload = Payload::from_json(format!(r#"{{"order":{n},"note":"{}"}}"#, "x".repeat(310)));
            let key = OrderingKey::new(format!("order-{}", n % KEYS)).unwrap();
            NewEvent::raw(EventType::new("OrderPlaced").unwrap(), payload).with_ordering_key(key)
        });
        publisher.publish_all(&mut connection, events).await.unwrap();
    }
    connection.execute("VACUUM ANALYZE outbox.outbox").await.unwrap();
}

/// Drains the outbox; events per second from the second tenth on, so that what it takes to open sessions is left out.
async fn drain(database: &TestDatabase, dispatcher: Option<Arc<dyn Dispatcher>>) -> f64 {
    fill(database).await;
    let counted = Arc::new(Counted {
        dispatcher,
        delivered: AtomicUsize::new(0),
    });
    let source = PgSource::builder(database.connect_options())
        .start()
        .await
        .unwrap();
    let relay = Relay::builder(Arc::new(source), counted.clone())
        .concurrency(CONCURRENCY)
        .build()
        .unwrap()
        .spawn();
    let until = async |events| {
        while counted.delivered.load(Ordering::Acquire) < events {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    until(EVENTS / 10).await;
    let (start, first) = (Instant::now(), counted.delivered.load(Ordering::Acquire));
    until(EVENTS).await;
    let rate = (EVENTS - first) as f64 / start.elapsed().as_secs_f64();
    relay.shutdown().await.unwrap();
    rate
}

pub(crate) async fn compare(what: &str, bootstrap: &str) {
    let options = ServerOptions::default()
        .with_fsync(true)
        .with_setting("shared_buffers", "1GB")
        .with_setting("max_wal_size", "8GB");
    let server = DevPostgres::start_own(options).await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    migrate(&mut database.pool().acquire().await.unwrap(), &Names::default())
        .await
        .unwrap();
    let (guarded, naive) = (guarded(bootstrap), naive(bootstrap));
    // For warming up.
    measure(&guarded).await;
    measure(&naive).await;
    let (mut claims, mut producer, mut topic) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..REPETITIONS {
        claims.push(drain(&database, None).await);
        producer.push(measure(&naive).await);
        topic.push(drain(&database, Some(Arc::clone(&guarded))).await);
    }
    let (claims, producer, topic) = (median(claims), median(producer), median(topic));
    println!(
        "{what}: Postgres to topic {topic:.0}/s, claims alone {claims:.0}/s, naive producer alone {producer:.0}/s, ratio {:.2} \
         to the lower",
        topic / claims.min(producer)
    );
}
