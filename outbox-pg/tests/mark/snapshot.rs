//! What an old snapshot costs.

use std::time::Duration;

use outbox_core::Outcome;
use sqlx::Executor;
use tokio::time::Instant;

use crate::support::{World, claim, settle};

#[tokio::test]
async fn an_old_snapshot_does_not_make_claims_dear() {
    let world = World::new().await;
    world.publish_range(0..200, |_| None).await;
    let fresh = world.blocks_of_a_claim().await;
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
            settle(&source, &claimed, Outcome::Completed).await;
        }
    }
    // The source moves the mark by itself; here it is helped along, so that the test need not wait.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mark = world.move_mark().await;
        if mark >= 10_200 {
            break;
        }
        assert!(Instant::now() < deadline, "the mark stays at {mark}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    world.publish_range(0..200, |_| None).await;
    let with = world.blocks_of_a_claim().await;

    drop(source);
    world.run("SELECT setval('outbox.outbox_mark', 0)").await;
    let without = world.blocks_of_a_claim().await;

    assert!(
        with < 2 * fresh + 100,
        "{with} blocks with the mark, {fresh} at first"
    );
    assert!(
        with < without / 2,
        "{with} blocks with the mark, {without} without: the test shows nothing"
    );
}
