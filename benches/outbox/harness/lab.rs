//! A Postgres with an outbox, and how much CPU it has used.

use outbox::{EventType, Names, NewEvent, OrderingKey, Payload, PgPublisher, migrate};
use outbox_dev::{DevPostgres, ServerOptions, TestDatabase};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

/// A server of its own, with fsync, as a careful user runs it; nobody else is on it.
pub(crate) struct Lab {
    // Before the server: it is dropped there.
    pub(crate) database: TestDatabase,
    pub(crate) server: DevPostgres,
    postmaster: Option<u32>,
}

/// A payload of the size that services send: about 335 bytes.
pub(crate) fn payload(n: usize) -> Payload {
    Payload::from_json(format!(r#"{{"order":{n},"note":"{}"}}"#, "x".repeat(310)))
}

/// The n-th event, with one of so many keys; without, if there are none.
pub(crate) fn event(n: usize, keys: usize) -> NewEvent {
    let event = NewEvent::raw(EventType::new("OrderPlaced").unwrap(), payload(n)).with_header(
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    );
    match keys {
        0 => event,
        keys => event.with_ordering_key(OrderingKey::new(format!("order-{}", n % keys)).unwrap()),
    }
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let options = ServerOptions::default()
            .with_fsync(true)
            .with_setting("shared_buffers", "1GB")
            .with_setting("max_wal_size", "8GB")
            .with_setting("track_functions", "pl");
        let server = DevPostgres::start_own(options).await.expect("a Postgres");
        let database = Self::outbox_on(&server).await;
        let file = sqlx::query("SELECT pg_read_file('postmaster.pid')")
            .fetch_one(database.pool())
            .await;
        // In a container its processes are not to be seen from here: no CPU figures then.
        let postmaster = file
            .ok()
            .and_then(|row| row.get::<String, _>(0).lines().next()?.parse().ok());
        Self {
            database,
            server,
            postmaster,
        }
    }

    /// A database with an outbox.
    pub(crate) async fn outbox_on(server: &DevPostgres) -> TestDatabase {
        let database = TestDatabase::create_on(server).await.expect("a database");
        let mut connection = PgConnection::connect(database.url()).await.unwrap();
        migrate(&mut connection, &Names::default())
            .await
            .expect("migrations");
        database
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(self.database.url()).await.unwrap()
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let mut connection = self.connect().await;
        connection
            .execute(AssertSqlSafe(sql.to_owned()))
            .await
            .expect(sql);
        connection.close().await.unwrap();
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
        query.fetch_one(self.database.pool()).await.expect(sql).get(0)
    }

    /// An outbox with so many pending events and nothing else.
    pub(crate) async fn fill(&self, events: usize, keys: usize) {
        self.fill_with(events, |n| event(n, keys)).await;
    }

    pub(crate) async fn fill_with(&self, events: usize, one: impl Fn(usize) -> NewEvent) {
        self.execute("TRUNCATE outbox.outbox, outbox.outbox_lease, outbox.processed_events")
            .await;
        let mut connection = self.connect().await;
        let publisher = PgPublisher::new(&Names::default());
        for start in (0..events).step_by(1000) {
            let events = (start..(start + 1000).min(events)).map(&one);
            publisher.publish_all(&mut connection, events).await.unwrap();
        }
        connection.close().await.unwrap();
        self.execute("VACUUM ANALYZE outbox.outbox").await;
    }

    /// Prints how large claims and settlements were on average, and what took how long within them.
    pub(crate) async fn tell_calls(&self, events: usize) {
        if std::env::var_os("OUTBOX_BENCH_CALLS").is_none() {
            return;
        }
        let sql = "SELECT funcname, calls, total_time, self_time FROM pg_stat_user_functions ORDER BY self_time DESC LIMIT 14";
        for row in sqlx::query(sql).fetch_all(self.database.pool()).await.unwrap() {
            let per_event = |column| row.get::<f64, _>(column) * 1e3 / events as f64;
            println!(
                "      {:28} {:6} calls  {:7.2} µs per event, {:7.2} by itself",
                row.get::<String, _>(0),
                row.get::<i64, _>(1),
                per_event(2),
                per_event(3)
            );
        }
    }

    /// CPU seconds that the server and all its sessions, past and present, have used.
    pub(crate) fn cpu(&self) -> f64 {
        let ticks = |pid: &str, fields: &[usize]| -> f64 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit(')').next().unwrap_or_default();
            let all: Vec<&str> = after.split_whitespace().collect();
            let value = |field: &usize| all.get(field - 3)?.parse::<f64>().ok();
            fields.iter().filter_map(value).sum::<f64>() / 100.0
        };
        let Some(postmaster) = self.postmaster.map(|pid| pid.to_string()) else {
            return f64::NAN;
        };
        let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
        let children = children.unwrap_or_default();
        let running: f64 = children
            .split_whitespace()
            .map(|child| ticks(child, &[14, 15]))
            .sum();
        ticks(&postmaster, &[14, 15, 16, 17]) + running
    }
}
