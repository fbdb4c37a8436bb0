//! Tables that were emptied, and numbers that began anew.

use outbox_core::{Claimed, KeyPolicy, NewEvent, Outcome, Source};
use outbox_pg::PgSource;
use sqlx::Executor;

use crate::support::{World, claim, event, outcome, payload};
use crate::{candidate, mark, move_to};

/// Has a mark at the tenth event, all of them delivered.
async fn ten_delivered() -> (World, PgSource) {
    let world = World::new().await;
    for n in 1..=10 {
        world.publish(event(&n.to_string())).await;
    }
    world.run("UPDATE outbox.outbox SET status = 'completed'").await;
    let source = world.quiet_source().await;
    // The source does so too, when it starts.
    if let (Some(place), writers) = candidate(&world).await {
        assert!(move_to(&world, place, &writers).await);
    }
    assert_eq!(mark(&world).await, 10);
    (world, source)
}

/// A candidate that has not been moved to, beyond ten events.
async fn one_more(world: &World) -> (i64, Vec<String>) {
    loop {
        world.publish(event("11")).await;
        world.run("UPDATE outbox.outbox SET status = 'completed'").await;
        // None if the source, which begins by moving the mark, was faster.
        if let (Some(place), writers) = candidate(world).await {
            return (place, writers);
        }
    }
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
    let (place, writers) = one_more(&world).await;

    empty(&world, "TRUNCATE outbox.outbox RESTART IDENTITY").await;
    let mut late = world.pool().begin().await.unwrap();
    world.publisher.publish(&mut late, event("1")).await.unwrap();
    for n in 2..=20 {
        world.publish(event(&n.to_string())).await;
    }
    move_to(&world, place, &writers).await;
    late.commit().await.unwrap();

    assert_eq!(claim(&source, 30).await.len(), 20);
}

#[tokio::test]
async fn a_candidate_from_before_a_truncate_is_of_no_use() {
    let (world, _source) = ten_delivered().await;
    let (place, writers) = one_more(&world).await;

    empty(&world, "TRUNCATE outbox.outbox RESTART IDENTITY").await;

    assert!(move_to(&world, place, &writers).await);
    assert_eq!(mark(&world).await, 0);
}

#[tokio::test]
async fn leases_whose_numbers_began_anew_keep_their_events_from_others() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    // Enough leases for their mark to move.
    for n in 1..=80 {
        world.publish(event(&n.to_string())).await;
        let claimed = claim(&source, 1).await;
        let outcomes = claimed
            .iter()
            .map(|event| outcome(event, Outcome::Completed))
            .collect();
        source.settle(outcomes).await.unwrap();
    }

    empty(
        &world,
        "TRUNCATE outbox.outbox, outbox.outbox_lease RESTART IDENTITY",
    )
    .await;
    for n in 1..=2 {
        world.publish(event(&n.to_string())).await;
    }

    let (first, second) = (claim(&source, 1).await, claim(&source, 1).await);
    assert_eq!((first.len(), second.len()), (1, 1));
    assert_ne!(first[0].id, second[0].id);
    assert_eq!(claim(&source, 1).await.len(), 0, "each was claimed already");
}

#[tokio::test]
async fn a_key_waits_for_no_failed_event_from_before_a_truncate() {
    let keyed = |json: &str, key: &str| -> NewEvent { event(json).with_ordering_key(key.parse().unwrap()) };
    for key in [KeyPolicy::Park, KeyPolicy::Stop] {
        let world = World::new().await;
        let source = world.quiet_source().await;
        world.publish(keyed("1", "failed")).await;
        let failed = Outcome::Failed {
            error: "no".to_owned(),
            done: Vec::new(),
            key,
        };
        let claimed = claim(&source, 10).await;
        let settled = source.settle(vec![outcome(&claimed[0], failed)]).await;
        assert_eq!(settled.unwrap().lost, []);
        world.run("SELECT outbox.outbox_pause('key', '', 'paused')").await;

        empty(&world, "TRUNCATE outbox.outbox").await;
        world.publish(keyed("2", "failed")).await;
        world.publish(keyed("3", "paused")).await;

        let claimed = claim(&source, 10).await;
        assert_eq!(claimed.iter().map(payload).collect::<Vec<_>>(), ["2"], "{key:?}");
    }
}
