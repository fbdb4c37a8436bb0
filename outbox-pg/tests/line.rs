//! Lines behind blocked keys, and the overtaking that a careless claim allows.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{KeyPolicy, NewEvent, OrderingKey, Outcome, Source};
use sqlx::{Connection, Executor, PgConnection, Row};
use support::{World, claim, event, outcome};

fn keyed(key: &str) -> NewEvent {
    event("1").with_ordering_key(OrderingKey::new(key).unwrap())
}

/// Waits until a backend waits for a lock: the statement under test has begun, and has its view of the data.
async fn until_somebody_waits(world: &World) {
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    loop {
        let count: i64 = sqlx::query(waiting).fetch_one(world.pool()).await.unwrap().get(0);
        if count > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Another relay's claim of one event, in a transaction that is still open and holds the claims' lock.
async fn open_claim(world: &World) -> PgConnection {
    let mut first = PgConnection::connect(world.database.url()).await.unwrap();
    first.execute("BEGIN").await.unwrap();
    first
        .execute(
            "SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 1, 1000000, interval '1 minute', '{}')",
        )
        .await
        .unwrap();
    first
}

/// Claims with the lock in the statement that reads: its view is older than the lock. The broken twin.
const NAIVE_CLAIM: &str = "
    WITH lock AS MATERIALIZED (SELECT pg_advisory_xact_lock(outbox.outbox_lock_number(1)) AS taken)
    SELECT count(*) FROM lock CROSS JOIN LATERAL (
        SELECT id FROM outbox.outbox WHERE status = 'pending' AND class = 'fresh' AND lock.taken IS NOT NULL
            AND id NOT IN (SELECT unnest(ids) FROM outbox.outbox_lease)) AS event";

/// How many events a second claim gets that began while the first was open, and went on after it.
async fn second_claim(world: &World, statement: &'static str) -> i64 {
    let mut first = open_claim(world).await;
    let url = world.database.url().to_owned();
    let second = tokio::spawn(async move {
        let mut second = PgConnection::connect(&url).await.unwrap();
        let row = sqlx::query(statement).fetch_one(&mut second).await.unwrap();
        row.get::<i64, _>(0)
    });
    until_somebody_waits(world).await;
    first.execute("COMMIT").await.unwrap();
    second.await.unwrap()
}

#[tokio::test]
async fn a_claim_that_waited_sees_what_was_claimed_meanwhile() {
    let world = World::new().await;
    world.publish(keyed("k")).await;
    world.publish(keyed("k")).await;

    let found = second_claim(
        &world,
        "SELECT count(*) FROM outbox.outbox_claim(gen_random_uuid(), 2, 10, 1000000, interval '1 minute', '{}')",
    )
    .await;

    assert_eq!(
        found, 0,
        "the second event overtook the first, or the first was claimed twice"
    );
}

#[tokio::test]
async fn a_claim_with_the_lock_in_the_reading_statement_claims_twice_and_overtakes() {
    let world = World::new().await;
    world.publish(keyed("k")).await;
    world.publish(keyed("k")).await;

    let found = second_claim(&world, NAIVE_CLAIM).await;

    assert_eq!(
        found, 2,
        "the broken twin did right: the test above shows nothing"
    );
}

/// Blocks that a claim of up to 50 events touches.
async fn blocks_of_a_claim(world: &World) -> i64 {
    let sql = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
        SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 50, 1000000, interval '1 minute', '{}')";
    let mut connection = world.pool().acquire().await.unwrap();
    let mut blocks = 0;
    // The first ones of a session also read the catalog, and plan.
    for _ in 0..3 {
        let mut undone = connection.begin().await.unwrap();
        let plan: serde_json::Value = sqlx::query(sql).fetch_one(&mut *undone).await.unwrap().get(0);
        undone.rollback().await.unwrap();
        let count = |kind: &str| plan[0]["Plan"][kind].as_i64().unwrap();
        blocks = count("Shared Hit Blocks") + count("Shared Read Blocks");
    }
    blocks
}

#[tokio::test]
async fn a_long_line_behind_a_blocked_key_costs_other_keys_nothing() {
    const FOLLOWERS: u32 = 20_000;
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..50, |n| Some(format!("other{n}"))).await;
    let alone = blocks_of_a_claim(&world).await;
    world.run("DELETE FROM outbox.outbox").await;

    // The key is blocked by a first event that waits an hour for its retry.
    world.publish(keyed("blocked")).await;
    let first = claim(&source, 1).await;
    let hour = Duration::from_secs(3600);
    let retry = Outcome::Retry {
        after: hour,
        error: "later".into(),
        done: vec![],
    };
    source.settle(vec![outcome(&first[0], retry)]).await.unwrap();
    world
        .publish_range(0..FOLLOWERS, |_| Some("blocked".to_owned()))
        .await;
    world.publish_range(0..50, |n| Some(format!("other{n}"))).await;

    // The line forms while claims meet its events, each of them once.
    let mut others = 0;
    let mut claims = 0;
    while others < 50 {
        let claimed = claim(&source, 50).await;
        others += claimed.len();
        source
            .settle(
                claimed
                    .iter()
                    .map(|event| outcome(event, Outcome::Completed))
                    .collect(),
            )
            .await
            .unwrap();
        claims += 1;
        assert!(
            claims < 100,
            "after {claims} claims only {others} events of other keys came"
        );
    }
    world.publish_range(0..50, |n| Some(format!("other{n}"))).await;
    let beside = blocks_of_a_claim(&world).await;

    assert_eq!(world.count("class = 'held'").await, i64::from(FOLLOWERS));
    assert!(
        beside < 2 * alone + 200,
        "{beside} blocks beside the line, {alone} without it"
    );
}

#[tokio::test]
async fn a_line_moves_up_when_its_key_is_free_again() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..300, |_| Some("k".to_owned())).await;
    let first = claim(&source, 1).await;
    let failed = Outcome::Failed {
        error: "no".into(),
        done: vec![],
        key: KeyPolicy::GoOn,
    };
    // While the key is in flight, a full window of its followers is put in line.
    assert!(claim(&source, 50).await.is_empty());
    source.settle(vec![outcome(&first[0], failed)]).await.unwrap();

    let mut seen = 1;
    while seen < 300 {
        let run = claim(&source, 50).await;
        assert!(!run.is_empty(), "the line is stuck after {seen} events");
        let positions: Vec<_> = run.iter().map(|event| event.position).collect();
        assert!(positions.is_sorted());
        seen += run.len();
        source
            .settle(
                run.iter()
                    .map(|event| outcome(event, Outcome::Completed))
                    .collect(),
            )
            .await
            .unwrap();
    }
    assert_eq!(world.count("status = 'completed'").await, 299);
}
