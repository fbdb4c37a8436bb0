//! What an old snapshot costs.

use std::time::Duration;

use outbox_core::Outcome;
use outbox_pg::PgSource;
use sqlx::{Executor, PgConnection};
use tokio::time::Instant;

use crate::support::{World, blocks_of, claim, event, settle as settle_all};

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
            settle_all(&source, &claimed, Outcome::Completed).await;
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

/// Claims one event; returns what settling it and extending its lease cost in this session.
async fn cost_of_a_lease(world: &World, source: &PgSource, session: &mut PgConnection) -> (i64, i64) {
    world.publish(event("1")).await;
    let claimed = claim(source, 1).await.remove(0);
    let (number, secret, seq) = (claimed.token.number(), claimed.token.secret(), claimed.position.0);
    let settle = format!(
        "SELECT * FROM outbox.outbox_settle(ARRAY[{number}], ARRAY[{secret}], ARRAY[1], ARRAY[{seq}], NULL, false, false)"
    );
    let extend =
        format!("SELECT outbox.outbox_extend(ARRAY[{number}], ARRAY[{secret}], interval '1 minute')");
    let costs = (
        blocks_of(session, &settle).await,
        blocks_of(session, &extend).await,
    );
    settle_all(source, &[claimed], Outcome::Completed).await;
    costs
}

#[tokio::test]
async fn an_old_snapshot_does_not_make_settlements_dear() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    // Keeps the plans that it makes now, as a relay's session does.
    let mut session = world.pool().acquire().await.unwrap();
    let fresh = cost_of_a_lease(&world, &source, &mut session).await;
    let mut pinned = world.pool().acquire().await.unwrap();
    pinned
        .execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        .await
        .unwrap();

    for _ in 0..500 {
        world.publish(event("1")).await;
        settle_all(&source, &claim(&source, 1).await, Outcome::Completed).await;
    }

    // As autovacuum would: the planner then knows of few leases, and nothing of those that have ended.
    world.run("VACUUM ANALYZE outbox.outbox_lease").await;
    let with = cost_of_a_lease(&world, &source, &mut session).await;
    assert!(
        with.0 < 2 * fresh.0 && with.1 < 2 * fresh.1,
        "settling and extending take {with:?} blocks beside 500 leases that have ended, {fresh:?} at first"
    );
}
