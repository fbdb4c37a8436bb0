//! Lines behind blocked keys, and the overtaking that a careless claim allows.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{KeyPolicy, NewEvent, OrderingKey, Outcome, Source};
use outbox_pg::PgSource;
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
            AND seq NOT IN (SELECT unnest(seqs) FROM outbox.outbox_lease)) AS event";

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

/// What a claim of up to 50 events costs: blocks that it touches, and milliseconds, the median of nine.
#[derive(Clone, Copy)]
struct Cost {
    blocks: i64,
    millis: f64,
}

async fn cost_of_a_claim(world: &World) -> Cost {
    let sql = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
        SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 50, 1000000, interval '1 minute', '{}')";
    let mut connection = world.pool().acquire().await.unwrap();
    let mut blocks = 0;
    let mut times = Vec::new();
    // The first ones of a session also read the catalog, and plan.
    for n in 0..12 {
        let mut undone = connection.begin().await.unwrap();
        let plan: serde_json::Value = sqlx::query(sql).fetch_one(&mut *undone).await.unwrap().get(0);
        undone.rollback().await.unwrap();
        let count = |kind: &str| plan[0]["Plan"][kind].as_i64().unwrap();
        blocks = count("Shared Hit Blocks") + count("Shared Read Blocks");
        if n >= 3 {
            times.push(plan[0]["Execution Time"].as_f64().unwrap());
        }
    }
    times.sort_by(f64::total_cmp);
    Cost {
        blocks,
        millis: times[times.len() / 2],
    }
}

/// Publishes followers of the blocked key, and lets claims meet them, each once. How many claims that took.
async fn grow_line(world: &World, source: &PgSource, followers: u32) -> u32 {
    let line = format!(
        "INSERT INTO outbox.outbox (id, event_type, payload, ordering_key)
         SELECT gen_random_uuid(), 'Counted', '1', 'blocked' FROM generate_series(1, {followers})"
    );
    world.run(&line).await;
    world.publish_range(0..50, |n| Some(format!("other{n}"))).await;
    let (mut others, mut claims) = (0, 0);
    while others < 50 {
        let claimed = claim(source, 50).await;
        others += claimed.len();
        let done = claimed.iter().map(|event| outcome(event, Outcome::Completed));
        source.settle(done.collect()).await.unwrap();
        claims += 1;
        assert!(
            claims < 50 + followers / 2_000,
            "after {claims} claims only {others} events of other keys came"
        );
    }
    claims
}

/// Compares claims of other keys beside a long line, whose key waits an hour for a retry, with those beside a short one.
async fn compare(followers: u32) {
    const SHORT: u32 = 10;
    let world = World::new().await;
    let source = world.quiet_source().await;
    let others = async || world.publish_range(0..50, |n| Some(format!("other{n}"))).await;
    others().await;
    let alone = cost_of_a_claim(&world).await;
    world.run("DELETE FROM outbox.outbox").await;

    world.publish(keyed("blocked")).await;
    let first = claim(&source, 1).await;
    let retry = Outcome::Retry {
        after: Duration::from_secs(3600),
        error: "later".into(),
        done: vec![],
    };
    source.settle(vec![outcome(&first[0], retry)]).await.unwrap();
    grow_line(&world, &source, SHORT).await;
    others().await;
    let short = cost_of_a_claim(&world).await;
    claim_all(&source).await;
    let claims = grow_line(&world, &source, followers).await;
    others().await;
    let long = cost_of_a_claim(&world).await;

    for (line, cost) in [(0, alone), (SHORT, short), (followers, long)] {
        println!("{line} followers: {} blocks, {:.2} ms", cost.blocks, cost.millis);
    }
    println!("the line was met by {claims} claims");
    assert_eq!(world.count("class = 'held'").await, i64::from(SHORT + followers));
    // An index of a million entries is a level or two higher.
    assert!(
        long.blocks < 3 * short.blocks + 100,
        "{} blocks beside the long line, {} beside the short one",
        long.blocks,
        short.blocks
    );
}

async fn claim_all(source: &PgSource) {
    let claimed = claim(source, 100).await;
    let done = claimed.iter().map(|event| outcome(event, Outcome::Completed));
    source.settle(done.collect()).await.unwrap();
}

#[tokio::test]
async fn a_long_line_behind_a_blocked_key_costs_other_keys_nothing() {
    compare(20_000).await;
}

#[tokio::test]
#[ignore = "a minute and a gigabyte; its figures stand in docs/performance.md"]
async fn nor_does_a_line_of_a_million() {
    compare(1_000_000).await;
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
