//! What an old snapshot costs.

use std::time::Duration;

use outbox_core::{Outcome, Source};
use sqlx::{Connection, Executor, Row};
use tokio::time::Instant;

use crate::support::{World, claim, outcome};
use crate::{candidate, mark, move_to};

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
    while mark(&world).await < 10_200 {
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

    assert!(
        with < 2 * fresh + 100,
        "{with} blocks with the mark, {fresh} at first"
    );
    assert!(
        with < without / 2,
        "{with} blocks with the mark, {without} without: the test shows nothing"
    );
}
