//! A database with an outbox, and what tests do to it.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use outbox_core::{
    ClaimRequest, Claimed, EventId, EventType, NewEvent, OrderingKey, Outcome, Payload, Settlement, Source,
};
use outbox_dev::TestDatabase;
use outbox_pg::{Names, PgPublisher, PgSource, PgSourceBuilder, migrate};
use sqlx::{Connection, PgConnection, PgPool, Row};

/// A database of its own with an outbox in it.
pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) publisher: PgPublisher,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::on(TestDatabase::create().await.expect("a database for the test")).await
    }

    pub(crate) async fn on(database: TestDatabase) -> Self {
        let mut connection = database.pool().acquire().await.unwrap();
        migrate(&mut connection, &Names::default())
            .await
            .expect("migrations");
        Self {
            database,
            publisher: PgPublisher::new(&Names::default()),
        }
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

    pub(crate) async fn publish(&self, event: NewEvent) -> EventId {
        let id = event.id;
        let mut connection = self.pool().acquire().await.unwrap();
        self.publisher
            .publish(&mut connection, event)
            .await
            .expect("published");
        id
    }

    /// Publishes events of one type with the numbers of the range as payloads, with a key each if `key` gives one.
    pub(crate) async fn publish_range(
        &self,
        range: std::ops::Range<u32>,
        key: impl Fn(u32) -> Option<String>,
    ) {
        let events = range.map(|n| {
            let event = event(&n.to_string());
            match key(n) {
                Some(key) => event.with_ordering_key(OrderingKey::new(key).unwrap()),
                None => event,
            }
        });
        let mut connection = self.pool().acquire().await.unwrap();
        self.publisher
            .publish_all(&mut connection, events)
            .await
            .expect("published");
    }

    pub(crate) async fn count(&self, condition: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM outbox.outbox WHERE {condition}");
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .fetch_one(self.pool())
            .await
            .unwrap()
            .get(0)
    }

    pub(crate) async fn run(&self, sql: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
            .execute(self.pool())
            .await
            .expect(sql);
    }

    /// Moves the mark as far as it goes, and returns where it is then.
    pub(crate) async fn move_mark(&self) -> i64 {
        let moved = "SELECT outbox.outbox_mark_move(step.candidate, step.writers)
            FROM outbox.outbox_mark_candidate() AS step WHERE step.candidate IS NOT NULL";
        sqlx::query(moved).fetch_optional(self.pool()).await.unwrap();
        sqlx::query_scalar("SELECT last_value FROM outbox.outbox_mark")
            .fetch_one(self.pool())
            .await
            .unwrap()
    }

    /// Blocks that a claim of 50 events touches.
    pub(crate) async fn blocks_of_a_claim(&self) -> i64 {
        let claim =
            "SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 50, 1000000, interval '1 minute', '{}')";
        blocks_of(&mut self.pool().acquire().await.unwrap(), claim).await
    }

    /// Waits until the condition holds for so many rows.
    pub(crate) async fn until(&self, condition: &str, rows: i64) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.count(condition).await;
            if found == rows {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{condition}: {found} rows, waited for {rows}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Blocks that a statement touches, which is undone: a measure of work that no busy machine disturbs.
pub(crate) async fn blocks_of(connection: &mut PgConnection, statement: &str) -> i64 {
    let sql = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}");
    let mut blocks = 0;
    // The first ones of a session also read the catalog, and plan.
    for _ in 0..3 {
        let mut undone = connection.begin().await.unwrap();
        let explain = sqlx::query(sqlx::AssertSqlSafe(sql.clone()));
        let plan: serde_json::Value = explain.fetch_one(&mut *undone).await.unwrap().get(0);
        undone.rollback().await.unwrap();
        let count = |kind: &str| plan[0]["Plan"][kind].as_i64().unwrap();
        blocks = count("Shared Hit Blocks") + count("Shared Read Blocks");
    }
    blocks
}

/// An event of type `Counted` whose payload is the given JSON.
pub(crate) fn event(json: &str) -> NewEvent {
    NewEvent::raw(EventType::new("Counted").unwrap(), Payload::from_json(json))
}

pub(crate) fn request(max_events: u32) -> ClaimRequest {
    ClaimRequest::new(NonZeroU32::new(max_events).unwrap(), Duration::from_secs(30))
}

pub(crate) async fn claim(source: &impl Source, max_events: u32) -> Vec<Claimed> {
    source.claim(request(max_events)).await.expect("claim")
}

pub(crate) fn outcome(claimed: &Claimed, outcome: Outcome) -> Settlement {
    Settlement {
        token: claimed.token,
        position: claimed.position,
        id: claimed.id,
        outcome,
    }
}

/// Settles all of these in one way; their leases must still be held.
pub(crate) async fn settle(source: &impl Source, claimed: &[Claimed], end: Outcome) {
    let settlements = claimed.iter().map(|event| outcome(event, end.clone()));
    let settled = source.settle(settlements.collect()).await.expect("settle");
    assert!(settled.lost.is_empty(), "lost: {:?}", settled.lost);
}

pub(crate) fn payload(claimed: &Claimed) -> String {
    claimed
        .envelope
        .as_ref()
        .expect("decodable")
        .payload
        .as_str()
        .to_owned()
}

/// Drops the future after so many polls; whether it had ended before.
pub(crate) async fn cut<T>(polls: u32, future: impl Future<Output = T>) -> bool {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        future.as_mut().poll(context).map(|_| true)
    })
    .await
}
