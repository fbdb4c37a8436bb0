//! From the commit to the handler at 200 events a second: by the relay, by the relay when every NOTIFY is lost, and by a
//! raw LISTEN with one claim.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{Delivered, Delivery, Dispatcher, EventId, Failure, Names, PgPublisher, PgSource, Relay};
use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor, Row};

use crate::harness::{Lab, Report, Size, Target, event, quantile};

const EVENTS: usize = 1_000;
/// So many before, whose latency does not count.
const WARM: usize = 50;
const PAUSE: Duration = Duration::from_millis(5);

const FLOOR: &str = "DROP TABLE IF EXISTS raw;
    CREATE TABLE raw (seq bigint PRIMARY KEY, payload json NOT NULL, status text NOT NULL DEFAULT 'pending');
    CREATE INDEX ON raw (seq) WHERE status = 'pending'";

#[derive(Default)]
struct Arrivals(Mutex<HashMap<EventId, Instant>>);

#[async_trait]
impl Dispatcher for Arrivals {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let twice = self
            .0
            .lock()
            .unwrap()
            .insert(delivery.envelope.id, Instant::now());
        assert!(twice.is_none(), "delivered twice");
        Ok(Delivered::Handled)
    }
}

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    let mut report = Report::new("latency");
    report.fact("events", EVENTS);
    for _ in 0..size.rounds {
        let all = [
            ("raw LISTEN and a claim", floor(&lab).await),
            ("relay", relay(&lab, "handshake").await),
            ("relay, NOTIFY lost", relay(&lab, "never").await),
        ];
        for (label, times) in all {
            let measures = [
                ("p50 ms", quantile(&times, 0.5)),
                ("p99 ms", quantile(&times, 0.99)),
            ];
            report.add(label, &measures);
        }
    }
    let added = report.median("relay", "p50 ms") - report.median("raw LISTEN and a claim", "p50 ms");
    report.ratio("p50 ms: relay - floor".into(), added, Target::AtMost(2.0));
    report.compare("p99 ms", "relay", "raw LISTEN and a claim", Target::AtMost(2.0));
    let lost = report.median("relay, NOTIFY lost", "p99 ms");
    report.ratio(
        "p99 ms: NOTIFY lost, while active".into(),
        lost,
        Target::AtMost(50.0),
    );
    report.finish();
}

/// Publishes one event after the other; returns when each commit was sent.
async fn publish(lab: &Lab, wake: &'static str, events: usize) -> HashMap<EventId, Instant> {
    let mut connection = lab.connect().await;
    let set = format!("SET outbox.wake = '{wake}'");
    connection.execute(sqlx::AssertSqlSafe(set)).await.unwrap();
    let publisher = PgPublisher::new(&Names::default());
    let mut sent = HashMap::new();
    let mut clock = tokio::time::interval(PAUSE);
    for n in 0..events {
        clock.tick().await;
        let event = event(n, 0);
        let id = event.id;
        let mut transaction = connection.begin().await.unwrap();
        publisher.publish(&mut transaction, event).await.unwrap();
        sent.insert(id, Instant::now());
        transaction.commit().await.unwrap();
    }
    sent
}

async fn relay(lab: &Lab, wake: &'static str) -> Vec<f64> {
    lab.fill(0, 0).await;
    let arrivals = Arc::new(Arrivals::default());
    let source = PgSource::builder(lab.database.connect_options())
        .start()
        .await
        .unwrap();
    let relay = Relay::builder(Arc::new(source), arrivals.clone())
        .build()
        .unwrap()
        .spawn();
    // Some to begin with: the relay has its sessions, and these have their plans.
    let first = publish(lab, "handshake", WARM).await;
    wait_for(&arrivals, first.len()).await;
    let sent = publish(lab, wake, EVENTS).await;
    wait_for(&arrivals, first.len() + EVENTS).await;
    relay.shutdown().await.unwrap();
    let arrived = arrivals.0.lock().unwrap();
    sent.iter()
        .map(|(id, sent)| arrived[id].duration_since(*sent).as_secs_f64() * 1e3)
        .collect()
}

async fn wait_for(arrivals: &Arrivals, events: usize) {
    while arrivals.0.lock().unwrap().len() < events {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A listener that claims whatever is there at each wake-up, with an update and its commit.
async fn floor(lab: &Lab) -> Vec<f64> {
    lab.execute(FLOOR).await;
    let mut listener = PgListener::connect(lab.database.url()).await.unwrap();
    listener.listen("raw").await.unwrap();
    let mut claims = lab.connect().await;
    let worker = tokio::spawn(async move {
        let mut arrived = HashMap::new();
        while arrived.len() < WARM + EVENTS {
            listener.recv().await.unwrap();
            let sql =
                "UPDATE raw SET status = 'completed' WHERE status = 'pending' RETURNING seq, payload::text";
            for row in sqlx::query(sql).fetch_all(&mut claims).await.unwrap() {
                let twice = arrived.insert(row.get::<i64, _>(0), Instant::now());
                assert!(twice.is_none(), "claimed twice");
            }
        }
        arrived
    });
    let mut connection = lab.connect().await;
    let mut sent = Vec::new();
    let mut clock = tokio::time::interval(PAUSE);
    for n in 0..WARM + EVENTS {
        clock.tick().await;
        let mut transaction = connection.begin().await.unwrap();
        sqlx::query(
            "WITH told AS (SELECT pg_notify('raw', '')) INSERT INTO raw SELECT $1, $2::json FROM told",
        )
        .bind(i64::try_from(n).unwrap())
        .bind(crate::harness::payload(n).as_str())
        .execute(&mut *transaction)
        .await
        .unwrap();
        sent.push(Instant::now());
        transaction.commit().await.unwrap();
    }
    let arrived = worker.await.unwrap();
    sent.iter()
        .enumerate()
        .skip(WARM)
        .map(|(n, sent)| {
            let n = i64::try_from(n).unwrap();
            arrived[&n].duration_since(*sent).as_secs_f64() * 1e3
        })
        .collect()
}
