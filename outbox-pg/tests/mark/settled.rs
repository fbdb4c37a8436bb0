//! What settlements do to the mark: they move it as far as claims have seen every number, and no further.

use sqlx::Row;

use crate::mark;
use crate::support::{World, event};

/// Claims what there is, as a relay whose task that moves the mark is away; returns the lease and its numbers.
async fn lease(world: &World) -> (i64, Vec<i64>) {
    let claim = "SELECT lease, seqs FROM outbox.outbox_claim(gen_random_uuid(), 7, 100, 1000000, interval '1 minute', '{}')";
    let row = sqlx::query(claim).fetch_one(world.pool()).await.unwrap();
    (row.get(0), row.get(1))
}

async fn complete(world: &World, (lease, seqs): (i64, Vec<i64>)) {
    let settle = "SELECT * FROM outbox.outbox_settle(ARRAY[$1], ARRAY[7::bigint], ARRAY[cardinality($2)], $2, NULL, false, false)";
    let query = sqlx::query(settle).bind(lease).bind(seqs);
    assert!(query.fetch_all(world.pool()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_settlement_moves_the_mark_below_the_first_number_that_no_claim_has_seen() {
    let world = World::new().await;
    world.publish_range(0..3, |_| None).await;
    let mut late = world.pool().begin().await.unwrap();
    world.publisher.publish(&mut late, event("4")).await.unwrap();
    world.publish_range(5..11, |_| None).await;

    complete(&world, lease(&world).await).await;

    assert_eq!(mark(&world).await, 3, "the fourth is still to come");
    late.commit().await.unwrap();
    let found = lease(&world).await;
    assert_eq!(found.1, [4]);
    complete(&world, found).await;
    assert_eq!(mark(&world).await, 4);
}

#[tokio::test]
async fn a_settlement_that_is_undone_moves_the_mark_past_nothing_that_comes_again() {
    let world = World::new().await;
    world.publish_range(0..10, |_| None).await;
    let (number, seqs) = lease(&world).await;
    let mut undone = world.pool().begin().await.unwrap();
    let settle =
        "SELECT * FROM outbox.outbox_settle(ARRAY[$1], ARRAY[7::bigint], ARRAY[10], $2, NULL, false, false)";
    let query = sqlx::query(settle).bind(number).bind(seqs.clone());
    query.fetch_all(&mut *undone).await.unwrap();
    undone.rollback().await.unwrap();

    assert_eq!(
        mark(&world).await,
        10,
        "a sequence does not follow its transaction back"
    );
    world
        .run("UPDATE outbox.outbox_lease SET until = clock_timestamp()")
        .await;

    // One after the other, as their lease was lost.
    assert_eq!(lease(&world).await.1, [1]);
    assert_eq!(world.count("status = 'pending' AND class = 'waiting'").await, 10);
}

#[tokio::test]
async fn numbers_that_were_set_back_are_not_passed_by_what_was_seen_of_others() {
    let world = World::new().await;
    world.publish_range(0..10, |_| None).await;
    let claimed = lease(&world).await;
    // The tenth will be given once more.
    world.run("SELECT setval('outbox.outbox_seq', 10, false)").await;

    complete(&world, claimed).await;

    assert_eq!(mark(&world).await, 0);
}
