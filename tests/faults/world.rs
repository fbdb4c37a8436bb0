//! A database with an outbox, and what the tests do to it.

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox::{
    Context, Dispatcher, Event, HandlerError, Names, NewEvent, PgPublisher, PgSource, PgSourceBuilder,
    Registry, Relay, RelayBuilder, RelayHandle, RetryPolicy, Source, migrate,
};
use outbox_dev::{DevPostgres, TestDatabase};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::time::Instant;
use uuid::Uuid;

/// A poll timeout by which no test finds anything.
pub(crate) const POLL: Duration = Duration::from_secs(60);

/// An event with a number.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize, Event)]
pub(crate) struct Numbered {
    pub(crate) n: u64,
}

pub(crate) fn numbered(n: u64) -> NewEvent {
    NewEvent::of(&Numbered { n }).unwrap()
}

/// One after the other, `n` of them, from 0.
pub(crate) fn many(n: u64) -> Vec<NewEvent> {
    (0..n).map(numbered).collect()
}

pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) publisher: PgPublisher,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::of(TestDatabase::create().await.expect("a database for the test")).await
    }

    pub(crate) async fn on(server: &DevPostgres) -> Self {
        Self::of(
            TestDatabase::create_on(server)
                .await
                .expect("a database for the test"),
        )
        .await
    }

    async fn of(database: TestDatabase) -> Self {
        let mut connection = database.pool().acquire().await.unwrap();
        migrate(&mut connection, &Names::default())
            .await
            .expect("migrations");
        let publisher = PgPublisher::new(&Names::default());
        Self { database, publisher }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        self.database.pool()
    }

    pub(crate) fn source(&self) -> PgSourceBuilder {
        PgSource::builder(self.database.connect_options())
    }

    /// A source that only polls: nothing happens behind a test that claims by hand.
    pub(crate) async fn quiet_source(&self) -> PgSource {
        self.source().poll_only().start().await.expect("a source")
    }

    /// A running relay that is woken by publishers alone.
    pub(crate) async fn attentive_relay(&self) -> RelayHandle {
        attentive(
            self.source().start().await.expect("a source"),
            Seen::default().dispatcher(),
        )
    }

    pub(crate) async fn publish(&self, event: NewEvent) -> Uuid {
        let id = event.id.as_uuid();
        self.publish_all(vec![event]).await;
        id
    }

    pub(crate) async fn publish_all(&self, events: Vec<NewEvent>) {
        let mut connection = self.pool().acquire().await.unwrap();
        self.publisher
            .publish_all(&mut connection, events)
            .await
            .expect("published");
    }

    /// Runs a script for its effect.
    pub(crate) async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(self.pool())
            .await
            .expect(sql);
    }

    /// Changes a default of the database, for sessions to come.
    pub(crate) async fn set_default(&self, setting: &str) {
        self.run(&format!("ALTER DATABASE {} SET {setting}", self.database.name()))
            .await;
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(self.pool())
            .await
            .expect(sql)
    }

    /// How many rows of the outbox meet a condition.
    pub(crate) async fn count(&self, condition: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM outbox.outbox WHERE {condition}"))
            .await
    }

    /// Waits until so many rows of the outbox meet a condition; how long that took.
    pub(crate) async fn until(&self, condition: &str, rows: i64) -> Duration {
        self.until_number(
            &format!("SELECT count(*) FROM outbox.outbox WHERE {condition}"),
            rows,
        )
        .await
    }

    /// Waits until a query has this answer; how long that took.
    pub(crate) async fn until_number(&self, sql: &str, wanted: i64) -> Duration {
        let began = Instant::now();
        loop {
            let found = self.number(sql).await;
            if found == wanted {
                return began.elapsed();
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{sql}: {found}, waited for {wanted}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until a relay sleeps: then publishers have to wake it.
    pub(crate) async fn until_asleep(&self) {
        self.until_number(&format!("SELECT count(*) {SLEEPER}"), 1).await;
    }

    /// No lease is left, no session of ours is in a transaction, and no advisory lock is held.
    pub(crate) async fn until_clean(&self) {
        self.until_number(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                 AND state LIKE 'idle in transaction%'",
            0,
        )
        .await;
        self.until_number(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            0,
        )
        .await;
    }

    pub(crate) async fn leases(&self) -> i64 {
        self.number("SELECT count(*) FROM outbox.outbox_lease").await
    }
}

/// The lock of a relay that sleeps.
pub(crate) const SLEEPER: &str =
    "FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = outbox.outbox_lock_number(2)";

/// What handlers were given, in the order of their starts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<u64>>>);

impl Seen {
    pub(crate) fn add(&self, n: u64) {
        self.0.lock().unwrap().push(n);
    }

    /// All numbers, sorted.
    pub(crate) fn sorted(&self) -> Vec<u64> {
        let mut seen = self.0.lock().unwrap().clone();
        seen.sort_unstable();
        seen
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// A dispatcher whose one handler notes the number and succeeds.
    pub(crate) fn dispatcher(&self) -> Arc<dyn Dispatcher> {
        let seen = self.clone();
        handled(move |event: Numbered, _: Context| {
            seen.add(event.n);
            async { Ok(()) }
        })
    }
}

/// A dispatcher with one handler.
pub(crate) fn handled<F, Fut>(handler: F) -> Arc<dyn Dispatcher>
where
    F: Fn(Numbered, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
{
    Arc::new(Registry::new().on::<Numbered>("only", handler).build().unwrap())
}

/// A relay that gives up after one try.
pub(crate) fn relay(source: impl Source, dispatcher: Arc<dyn Dispatcher>) -> RelayBuilder {
    Relay::builder(Arc::new(source), dispatcher)
        .retry(RetryPolicy::none())
        .shutdown_grace(Duration::from_secs(1))
}

/// A running relay that finds nothing by its poll timeout, only by what its source hears or asks for.
pub(crate) fn attentive(source: PgSource, dispatcher: Arc<dyn Dispatcher>) -> RelayHandle {
    relay(source, dispatcher)
        .poll_timeout(POLL)
        .build()
        .unwrap()
        .spawn()
}

pub(crate) fn nonzero(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}
