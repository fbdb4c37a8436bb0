//! How fast a backlog is drained, beside its floor: plain SQL through the same client, in the same run.
//!
//! Run with `make bench`, or `cargo bench --bench drain -- [EVENTS] [ROUNDS]` (50000, 5). Prints a line per round, then medians
//! as JSON. Every round checks that each event was delivered exactly once and is completed.
//!
//! The floor is the plainest relay there is: one transaction that locks 500 rows, reads them, marks them and commits.
//! It can lose nothing but has no leases: a slow handler would keep its transaction open.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark fails by panicking"
)]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{
    Delivered, Delivery, Dispatcher, EventId, EventType, Failure, Names, NewEvent, OrderingKey, Payload,
    PgPublisher, PgSource, Relay, migrate,
};
use outbox_dev::{DevPostgres, ServerOptions, TestDatabase};
use sqlx::{Connection, Executor, PgConnection, Row};

/// A payload of the size that services send: about 335 bytes.
fn payload(n: usize) -> Payload {
    Payload::from_json(format!(r#"{{"order":{n},"note":"{}"}}"#, "x".repeat(310)))
}

/// A handler that does nothing but remember the ids.
#[derive(Default)]
struct Seen(Mutex<Vec<EventId>>);

#[async_trait]
impl Dispatcher for Seen {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.0.lock().unwrap().push(delivery.envelope.id);
        Ok(Delivered::Handled)
    }
}

/// CPU seconds that the server and all its sessions, past and present, have used.
fn server_cpu(postmaster: Option<u32>) -> f64 {
    let ticks = |pid: &str, fields: &[usize]| -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after = stat.rsplit(')').next().unwrap_or_default();
        let all: Vec<&str> = after.split_whitespace().collect();
        fields
            .iter()
            .filter_map(|field| all.get(field - 3)?.parse::<f64>().ok())
            .sum::<f64>()
            / 100.0
    };
    let Some(postmaster) = postmaster.map(|pid| pid.to_string()) else {
        return f64::NAN;
    };
    let children =
        std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children")).unwrap_or_default();
    ticks(&postmaster, &[14, 15, 16, 17])
        + children
            .split_whitespace()
            .map(|child| ticks(child, &[14, 15]))
            .sum::<f64>()
}

struct Lab {
    database: TestDatabase,
    postmaster: Option<u32>,
    events: usize,
}

#[derive(Clone, Copy)]
struct Measured {
    per_second: f64,
    server_us: f64,
}

impl Lab {
    async fn fill(&self, keys: usize) {
        let mut connection = PgConnection::connect(self.database.url()).await.unwrap();
        connection
            .execute("TRUNCATE outbox.outbox, outbox.outbox_lease")
            .await
            .unwrap();
        let publisher = PgPublisher::new(&Names::default());
        let kind = EventType::new("OrderPlaced").unwrap();
        for start in (0..self.events).step_by(1000) {
            let events = (start..(start + 1000).min(self.events)).map(|n| {
                let event = NewEvent::raw(kind.clone(), payload(n)).with_header(
                    "traceparent",
                    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                );
                match keys {
                    0 => event,
                    keys => event.with_ordering_key(OrderingKey::new(format!("order-{}", n % keys)).unwrap()),
                }
            });
            publisher.publish_all(&mut connection, events).await.unwrap();
        }
        connection.execute("VACUUM ANALYZE outbox.outbox").await.unwrap();
    }

    async fn measure(&self, work: impl Future<Output = ()>) -> Measured {
        let (began, cpu) = (Instant::now(), server_cpu(self.postmaster));
        work.await;
        let seconds = began.elapsed().as_secs_f64();
        // Sessions that have just ended are counted once the postmaster has seen it.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let events = self.events as f64;
        Measured {
            per_second: events / seconds,
            server_us: (server_cpu(self.postmaster) - cpu) / events * 1e6,
        }
    }

    /// The relay with its defaults, or tuned: settlements that do not wait for the disk.
    async fn relay(&self, keys: usize, tuned: bool) -> Measured {
        self.fill(keys).await;
        let seen = Arc::new(Seen::default());
        let builder = PgSource::builder(self.database.connect_options());
        let builder = if tuned {
            builder.settle_asynchronously()
        } else {
            builder
        };
        let source = Arc::new(builder.start().await.unwrap());
        let measured = self
            .measure(async {
                let relay = Relay::builder(source, seen.clone()).build().unwrap().spawn();
                while seen.0.lock().unwrap().len() < self.events {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                relay.shutdown().await.unwrap();
            })
            .await;
        let seen = seen.0.lock().unwrap().clone();
        let different: HashSet<_> = seen.iter().collect();
        assert_eq!(
            (seen.len(), different.len()),
            (self.events, self.events),
            "delivered twice, or not at all"
        );
        let left = "SELECT count(*) FROM outbox.outbox WHERE status <> 'completed'";
        let left: i64 = sqlx::query(left)
            .fetch_one(self.database.pool())
            .await
            .unwrap()
            .get(0);
        assert_eq!(left, 0);
        measured
    }

    /// Lock, read, mark, commit, 500 at a time, over the same rows.
    async fn floor(&self, asynchronous: bool) -> Measured {
        self.fill(0).await;
        let mut connection = PgConnection::connect(self.database.url()).await.unwrap();
        connection.execute("DROP TABLE IF EXISTS floor").await.unwrap();
        connection.execute(FLOOR_TABLE).await.unwrap();
        connection.execute("VACUUM ANALYZE floor").await.unwrap();
        if asynchronous {
            connection.execute("SET synchronous_commit = off").await.unwrap();
        }
        connection
            .execute("SET plan_cache_mode = force_generic_plan")
            .await
            .unwrap();
        self.measure(async {
            loop {
                let mut transaction = connection.begin().await.unwrap();
                let rows = sqlx::query(FLOOR_CLAIM)
                    .fetch_all(&mut *transaction)
                    .await
                    .unwrap();
                if rows.is_empty() {
                    break;
                }
                let seqs: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
                let bytes: usize = rows
                    .iter()
                    .map(|row| row.try_get_raw(2).unwrap().as_bytes().unwrap().len())
                    .sum();
                assert!(bytes > 0);
                sqlx::query(FLOOR_MARK)
                    .bind(seqs)
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
                transaction.commit().await.unwrap();
            }
        })
        .await
    }
}

const FLOOR_TABLE: &str = "CREATE TABLE floor (
    seq bigint PRIMARY KEY, id uuid, event_type text NOT NULL, payload json NOT NULL, headers json NOT NULL,
    status text NOT NULL DEFAULT 'pending', retry_count int NOT NULL DEFAULT 0, error text,
    created_at timestamptz NOT NULL, available_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz);
    INSERT INTO floor (seq, id, event_type, payload, headers, created_at)
        SELECT seq, id, event_type, payload, headers, created_at FROM outbox.outbox;
    CREATE INDEX ON floor (seq) WHERE status = 'pending'";
const FLOOR_CLAIM: &str = "SELECT seq, id, payload, headers, event_type, created_at, retry_count FROM floor
    WHERE status = 'pending' AND available_at <= now() ORDER BY seq LIMIT 500 FOR UPDATE SKIP LOCKED";
const FLOOR_MARK: &str = "UPDATE floor SET status = 'completed', processed_at = now() WHERE seq = ANY ($1)";

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'));
    let mut number = |default: usize| {
        arguments
            .next()
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let (events, rounds) = (number(50_000), number(5));
    let options = ServerOptions::default()
        .with_fsync(true)
        .with_setting("shared_buffers", "1GB");
    let server = DevPostgres::start_own(options).await.expect("a Postgres");
    let database = TestDatabase::create_on(&server).await.expect("a database");
    migrate(&mut database.pool().acquire().await.unwrap(), &Names::default())
        .await
        .expect("migrations");
    let file = sqlx::query("SELECT pg_read_file('postmaster.pid')")
        .fetch_one(database.pool())
        .await;
    let postmaster = file
        .ok()
        .and_then(|row| row.get::<String, _>(0).lines().next()?.parse().ok());
    let lab = Lab {
        database,
        postmaster,
        events,
    };

    let names = [
        "floor",
        "relay",
        "floor, asynchronous",
        "relay, tuned",
        "relay, 10000 keys",
    ];
    let mut all: Vec<Vec<Measured>> = vec![Vec::new(); names.len()];
    for round in 0..rounds {
        let measured = [
            lab.floor(false).await,
            lab.relay(0, false).await,
            lab.floor(true).await,
            lab.relay(0, true).await,
            lab.relay(10_000, false).await,
        ];
        for (n, measured) in measured.into_iter().enumerate() {
            println!(
                "round {round}: {:22} {:>9.0} events/s {:>6.1} µs of the server",
                names[n], measured.per_second, measured.server_us
            );
            all[n].push(measured);
        }
    }
    let rate = |n: usize| median(all[n].iter().map(|one| one.per_second).collect());
    let cpu = |n: usize| median(all[n].iter().map(|one| one.server_us).collect());
    let report = serde_json::json!({
        "events": events, "rounds": rounds,
        "events_per_second": names.iter().enumerate().map(|(n, name)| (*name, rate(n))).collect::<std::collections::BTreeMap<_, _>>(),
        "server_us_per_event": names.iter().enumerate().map(|(n, name)| (*name, cpu(n))).collect::<std::collections::BTreeMap<_, _>>(),
        "relay_to_floor": rate(1) / rate(0), "tuned_to_floor": rate(3) / rate(2), "keyed_to_unkeyed": rate(4) / rate(1),
        "server_cpu_to_floor": cpu(1) / cpu(0),
    });
    println!("{}", serde_json::to_string_pretty(&report).unwrap());
}
