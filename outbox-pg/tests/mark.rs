//! The low-water mark: it follows what is settled, whatever snapshot is open, and never passes an event.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::{Claimed, Outcome, Source};
use outbox_dev::{DevPostgres, ServerOptions, TestDatabase};
use outbox_pg::PgSource;
use sqlx::{Connection, Executor, Row};
use support::{World, claim, event, outcome};
use tokio::time::Instant;

/// Moves the mark at once to where nothing is pending now: what the exact rule is there to replace. Must lose events.
const NAIVE: &str = "SELECT setval('outbox.outbox_mark', greatest(
    (SELECT last_value FROM outbox.outbox_mark),
    coalesce((SELECT min(seq) FROM outbox.outbox WHERE status = 'pending' AND class = 'fresh'
                AND seq > (SELECT last_value FROM outbox.outbox_mark)) - 1,
        (SELECT last_value FROM outbox.outbox_seq))))";

/// Publishes in transactions that stay open for a while, one in five rolled back, some through a savepoint.
async fn publish(world: Arc<World>, seed: u64, end: Instant) {
    let mut random = fastrand::Rng::with_seed(seed);
    while Instant::now() < end {
        let mut transaction = world.pool().begin().await.unwrap();
        world
            .publisher
            .publish(&mut transaction, event("1"))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(random.u64(0..300))).await;
        let mut inner = transaction.begin().await.unwrap();
        world
            .publisher
            .publish_all(&mut inner, (0..3).map(|_| event("2")))
            .await
            .unwrap();
        match random.bool() {
            true => inner.commit().await.unwrap(),
            false => inner.rollback().await.unwrap(),
        }
        let late = event("3");
        let late = if random.u32(0..10) == 0 {
            late.with_delay(Duration::from_millis(200))
        } else {
            late
        };
        world.publisher.publish(&mut transaction, late).await.unwrap();
        match random.u32(0..5) {
            0 => transaction.rollback().await.unwrap(),
            _ => transaction.commit().await.unwrap(),
        }
    }
}

/// Claims and settles until told to stop: most events completed, some retried or released.
async fn relay(world: Arc<World>, seed: u64, stop: Arc<AtomicBool>) {
    let source = world.quiet_source().await;
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let claimed = claim(&source, 20).await;
        let settlements = claimed.iter().map(|event| {
            let how = match random.u32(0..20) {
                0 => Outcome::Retry {
                    after: Duration::from_millis(100),
                    error: "no".into(),
                    done: vec![],
                },
                1 => Outcome::Released {
                    after: Duration::ZERO,
                    done: vec![],
                },
                _ => Outcome::Completed,
            };
            outcome(event, how)
        });
        source.settle(settlements.collect()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs publishers and relays; returns the mark at the end and how many events are below it for ever.
async fn traffic(naive: bool) -> (i64, i64) {
    let world = Arc::new(World::new().await);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let stop = Arc::new(AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(6);
    let relays: Vec<_> = (0..2)
        .map(|n| tokio::spawn(relay(Arc::clone(&world), seed ^ n, Arc::clone(&stop))))
        .collect();
    let publishers: Vec<_> = (10..18)
        .map(|n| tokio::spawn(publish(Arc::clone(&world), seed ^ n, end)))
        .collect();
    while naive && Instant::now() < end {
        world.run(NAIVE).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    if !naive {
        world.until("status = 'pending'", 0).await;
    }
    stop.store(true, Ordering::Relaxed);
    for relay in relays {
        relay.await.unwrap();
    }
    let mark = sqlx::query("SELECT last_value FROM outbox.outbox_mark")
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get(0);
    let below = sqlx::query("SELECT below FROM outbox.outbox_sweep()")
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get(0);
    (mark, below)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mark_passes_no_event_however_late_it_is_committed() {
    let (mark, below) = traffic(false).await;

    assert!(mark > 0, "the mark never moved: the test shows nothing");
    assert_eq!(below, 0);
}

/// A dump has its rows as of its snapshot, and its sequences as they are when it reads those.
#[tokio::test]
async fn the_sweep_finds_what_a_restored_dump_has_in_leases_that_had_ended() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world
        .publish_range(0..4, |n| (n > 1).then(|| "k".to_owned()))
        .await;
    claim(&source, 3).await;
    world
        .run("SELECT setval('outbox.outbox_mark', 4), setval('outbox.outbox_lease_mark', 1)")
        .await;
    world
        .run("UPDATE outbox.outbox SET class = 'held' WHERE seq = 4")
        .await;
    assert!(claim(&source, 4).await.is_empty());

    world.run("SELECT outbox.outbox_sweep()").await;

    assert_eq!(claim(&source, 4).await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_rule_loses_events_and_the_sweep_finds_them() {
    let (_, below) = traffic(true).await;

    assert!(
        below > 0,
        "the broken twin lost nothing: the test above may be too weak"
    );
}

/// One look at where the mark could go, and at who may still write below.
async fn candidate(world: &World) -> (Option<i64>, Vec<String>) {
    let row = sqlx::query("SELECT * FROM outbox.outbox_mark_candidate()")
        .fetch_one(world.pool())
        .await
        .unwrap();
    (
        row.get(0),
        row.get::<Option<Vec<String>>, _>(1).unwrap_or_default(),
    )
}

async fn move_to(world: &World, candidate: i64, writers: &[String]) -> bool {
    let query = sqlx::query("SELECT outbox.outbox_mark_move($1, $2)")
        .bind(candidate)
        .bind(writers.to_vec());
    query.fetch_one(world.pool()).await.unwrap().get(0)
}

async fn mark(world: &World) -> i64 {
    sqlx::query("SELECT last_value FROM outbox.outbox_mark")
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get(0)
}

#[tokio::test]
async fn the_mark_waits_for_whoever_may_still_write_below_it() {
    let world = World::new().await;
    world.run("CREATE SCHEMA IF NOT EXISTS other").await;
    let mut early = world.pool().begin().await.unwrap();
    world.publisher.publish(&mut early, event("1")).await.unwrap();
    world.publish(event("2")).await;
    world.run("UPDATE outbox.outbox SET status = 'completed'").await;

    let (place, writers) = candidate(&world).await;
    let place = place.expect("something to move past");
    assert_eq!(place, 3);
    assert!(
        !move_to(&world, place, &writers).await,
        "moved past an open publisher"
    );
    early.commit().await.unwrap();
    assert!(move_to(&world, place, &writers).await);

    assert_eq!(
        mark(&world).await,
        0,
        "the event that was committed late is the first now"
    );
    let source = world.quiet_source().await;
    assert_eq!(claim(&source, 10).await.len(), 1);
}

#[tokio::test]
async fn a_prepared_transaction_stops_the_mark() {
    let server =
        DevPostgres::start_own(ServerOptions::default().with_setting("max_prepared_transactions", "5"))
            .await
            .unwrap();
    let world = World::on(TestDatabase::create_on(&server).await.unwrap()).await;
    let mut connection = world.pool().acquire().await.unwrap();
    connection
        .execute("BEGIN; SET LOCAL outbox.wake = 'never'")
        .await
        .unwrap();
    world
        .publisher
        .publish(&mut connection, event("1"))
        .await
        .unwrap();
    let (place, writers) = {
        world.publish(event("2")).await;
        world.run("UPDATE outbox.outbox SET status = 'completed'").await;
        candidate(&world).await
    };
    connection.execute("PREPARE TRANSACTION 'late'").await.unwrap();

    let moved = move_to(&world, place.unwrap(), &writers).await;
    assert!(!moved, "the prepared transaction was taken for ended");
    connection.execute("COMMIT PREPARED 'late'").await.unwrap();
    assert!(move_to(&world, place.unwrap(), &writers).await);

    assert_eq!(mark(&world).await, 0);
}

#[tokio::test]
async fn a_mark_beyond_the_numbers_is_mended_when_a_relay_starts() {
    let world = World::new().await;
    // As after restoring a dump whose sequences are younger than its rows.
    world.publish(event("1")).await;
    world.run("SELECT setval('outbox.outbox_mark', 1000)").await;

    let source = world.quiet_source().await;

    assert_eq!(claim(&source, 10).await.len(), 1);
}

/// Has a mark at the tenth event, all of them delivered.
async fn ten_delivered() -> (World, PgSource) {
    let world = World::new().await;
    for n in 1..=10 {
        world.publish(event(&n.to_string())).await;
    }
    world.run("UPDATE outbox.outbox SET status = 'completed'").await;
    let source = world.quiet_source().await;
    let (place, writers) = candidate(&world).await;
    assert!(move_to(&world, place.unwrap(), &writers).await);
    assert_eq!(mark(&world).await, 10);
    (world, source)
}

#[tokio::test]
async fn what_is_published_after_a_truncate_is_found() {
    let (world, source) = ten_delivered().await;

    empty(&world, "TRUNCATE outbox.outbox RESTART IDENTITY").await;
    for n in 1..=10 {
        world.publish(event(&n.to_string())).await;
    }

    assert_eq!(claim(&source, 20).await.len(), 10);
}

#[tokio::test]
async fn what_is_published_after_the_numbers_began_anew_is_found() {
    let (world, source) = ten_delivered().await;

    world
        .run("DELETE FROM outbox.outbox; ALTER SEQUENCE outbox.outbox_seq RESTART")
        .await;
    world.publish(event("1")).await;

    assert_eq!(claim(&source, 20).await.len(), 1);
}

/// Empties the table. A relay may hold the numbers and wait for the table, while TRUNCATE does the reverse: then it goes again.
async fn empty(world: &World, truncate: &'static str) {
    while let Err(error) = world.pool().execute(truncate).await {
        let code = error.as_database_error().and_then(|error| error.code());
        assert_eq!(code.as_deref(), Some("40P01"), "{error}");
    }
}

/// Claims three events; then others take their numbers and, in the table, their places.
async fn replaced_while_claimed() -> (World, PgSource, Vec<Claimed>) {
    let world = World::new().await;
    let source = world.quiet_source().await;
    for n in 1..=3 {
        world.publish(event(&n.to_string())).await;
    }
    let claimed = claim(&source, 10).await;
    assert_eq!(claimed.len(), 3);
    (world, source, claimed)
}

const REPLACE: &str = "TRUNCATE outbox.outbox RESTART IDENTITY; INSERT INTO outbox.outbox (id, event_type, payload) \
     SELECT gen_random_uuid(), 'Counted', '1' FROM generate_series(1, 3)";

#[tokio::test]
async fn a_claim_from_before_a_truncate_neither_hides_nor_ends_what_came_after() {
    let (world, source, claimed) = replaced_while_claimed().await;

    empty(&world, REPLACE).await;
    let settled = claimed.iter().map(|event| outcome(event, Outcome::Completed));
    let settled = source.settle(settled.collect()).await.unwrap();

    assert_eq!(settled.lost.len(), 3);
    assert_eq!(claim(&source, 10).await.len(), 3);
}

#[tokio::test]
async fn writers_from_after_a_truncate_hold_a_candidate_from_before() {
    let (world, source) = ten_delivered().await;
    world.publish(event("11")).await;
    world.run("UPDATE outbox.outbox SET status = 'completed'").await;
    let (place, writers) = candidate(&world).await;

    empty(&world, "TRUNCATE outbox.outbox RESTART IDENTITY").await;
    let mut late = world.pool().begin().await.unwrap();
    world.publisher.publish(&mut late, event("1")).await.unwrap();
    for n in 2..=20 {
        world.publish(event(&n.to_string())).await;
    }
    move_to(&world, place.unwrap(), &writers).await;
    late.commit().await.unwrap();

    assert_eq!(claim(&source, 30).await.len(), 20);
}

#[tokio::test]
async fn a_candidate_from_before_a_truncate_is_of_no_use() {
    let (world, _source) = ten_delivered().await;
    world.publish(event("11")).await;
    world.run("UPDATE outbox.outbox SET status = 'completed'").await;
    let (place, writers) = candidate(&world).await;

    empty(&world, "TRUNCATE outbox.outbox RESTART IDENTITY").await;

    assert!(move_to(&world, place.unwrap(), &writers).await);
    assert_eq!(mark(&world).await, 0);
}

#[tokio::test]
async fn events_below_the_mark_are_mended_when_a_relay_starts() {
    let world = World::new().await;
    world.publish(event("1")).await;
    world.publish(event("2")).await;
    world.run("SELECT setval('outbox.outbox_mark', 1)").await;

    let source = world.quiet_source().await;

    assert_eq!(claim(&source, 10).await.len(), 2);
}

/// Blocks that a claim touched: a measure of work that no busy machine disturbs.
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
async fn an_old_snapshot_does_not_make_claims_dear() {
    let world = World::new().await;
    world.publish_range(0..200, |_| None).await;
    let fresh = blocks_of_a_claim(&world).await;
    let mut pinned = world.pool().acquire().await.unwrap();
    pinned
        .execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await
        .unwrap();

    let source = world.quiet_source().await;
    for _ in 0..20 {
        world.publish_range(0..500, |_| None).await;
        loop {
            let claimed = claim(&source, 500).await;
            if claimed.is_empty() {
                break;
            }
            source
                .settle(
                    claimed
                        .iter()
                        .map(|event| outcome(event, Outcome::Completed))
                        .collect(),
                )
                .await
                .unwrap();
        }
    }
    // The source moves the mark by itself; here it is helped along, so that the test need not wait.
    let deadline = Instant::now() + Duration::from_secs(30);
    while mark(&world).await < 9_000 {
        assert!(
            Instant::now() < deadline,
            "the mark stays at {}",
            mark(&world).await
        );
        if let (Some(place), writers) = candidate(&world).await {
            move_to(&world, place, &writers).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.publish_range(0..200, |_| None).await;
    let with = blocks_of_a_claim(&world).await;

    drop(source);
    world.run("SELECT setval('outbox.outbox_mark', 0)").await;
    let without = blocks_of_a_claim(&world).await;

    // The mark may be up to a thousand events behind: some blocks of dead entries, not all of them.
    assert!(
        with < 2 * fresh + 100,
        "{with} blocks with the mark, {fresh} at first"
    );
    assert!(
        with < without / 2,
        "{with} blocks with the mark, {without} without: the test shows nothing"
    );
}
