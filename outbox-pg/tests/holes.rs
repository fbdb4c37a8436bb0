//! Claims that go on where the last one ended: what may come up below that place is found all the same, each time at once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{Claimed, NewEvent, OrderingKey, Outcome, Source};
use outbox_pg::PgSource;
use sqlx::{Acquire, Row};
use support::{World, claim, event, outcome, payload};

fn payloads(claimed: &[Claimed]) -> Vec<String> {
    claimed.iter().map(payload).collect()
}

fn keyed(json: &str) -> NewEvent {
    event(json).with_ordering_key(OrderingKey::new("k").unwrap())
}

async fn settle(source: &PgSource, claimed: &[Claimed], with: Outcome) {
    let settlements = claimed.iter().map(|event| outcome(event, with.clone()));
    assert!(source.settle(settlements.collect()).await.unwrap().lost.is_empty());
}

#[tokio::test]
async fn what_is_committed_late_is_claimed_next() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let mut late = world.pool().begin().await.unwrap();
    world.publisher.publish(&mut late, keyed("1")).await.unwrap();
    world.publish(event("2")).await;
    assert_eq!(payloads(&claim(&source, 10).await), ["2"]);
    world.publish(keyed("3")).await;

    late.commit().await.unwrap();

    // Both are of one key: the later one, which is above the place, must not go first.
    assert_eq!(payloads(&claim(&source, 1).await), ["1"]);
}

#[tokio::test]
async fn what_a_claim_had_no_room_for_is_claimed_next() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..6, |_| None).await;
    // More than the bytes allowed: one event at a time.
    let mut request = support::request(4);
    request.max_bytes = 1;

    for n in 0..3 {
        let one = source.claim(request.clone()).await.unwrap();
        assert_eq!(payloads(&one), [n.to_string()]);
    }
    assert_eq!(payloads(&claim(&source, 10).await), ["3", "4", "5"]);
}

#[tokio::test]
async fn a_key_in_flight_leaves_holes_that_are_claimed_when_it_is_free() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(keyed("1")).await;
    let first = claim(&source, 10).await;
    world.publish(keyed("2")).await;
    world.publish(event("3")).await;
    assert_eq!(payloads(&claim(&source, 10).await), ["3"]);

    settle(&source, &first, Outcome::Completed).await;

    assert_eq!(payloads(&claim(&source, 10).await), ["2"]);
}

#[tokio::test]
async fn what_was_handed_back_is_found_beside_claims_that_passed_it() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..2, |_| None).await;
    let first = claim(&source, 1).await;
    let second = claim(&source, 1).await;
    assert_eq!(payloads(&second), ["1"]);

    let released = Outcome::Released {
        after: Duration::ZERO,
        done: Vec::new(),
    };
    settle(&source, &first, released).await;

    assert_eq!(payloads(&claim(&source, 10).await), ["0"]);
}

/// Nobody's events, passed by the leases beside them.
#[tokio::test]
async fn events_of_a_lease_deleted_by_hand_are_found_by_one_of_the_next_claims() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(event("0")).await;
    claim(&source, 1).await;
    world.publish(event("1")).await;
    claim(&source, 1).await;
    world
        .run("DELETE FROM outbox.outbox_lease WHERE number = 1")
        .await;

    for n in 2..70 {
        world.publish(event(&n.to_string())).await;
        if payloads(&claim(&source, 1).await) == ["0"] {
            return;
        }
    }
    panic!("it was not found");
}

#[tokio::test]
async fn a_claim_that_was_undone_leaves_no_trace() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..3, |_| None).await;
    claim(&source, 1).await;
    let mut connection = world.pool().acquire().await.unwrap();
    let mut undone = connection.begin().await.unwrap();
    let sql = "SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 1, 1000000, interval '1 minute', '{}')";
    sqlx::query(sql).fetch_one(&mut *undone).await.unwrap();
    undone.rollback().await.unwrap();

    assert_eq!(payloads(&claim(&source, 10).await), ["1", "2"]);
}

#[tokio::test]
async fn numbers_that_began_anew_are_not_taken_for_seen_ones() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..3, |_| None).await;
    claim(&source, 3).await;

    // The leases stay, as they would not after TRUNCATE.
    world
        .run("DELETE FROM outbox.outbox; ALTER SEQUENCE outbox.outbox_seq RESTART")
        .await;
    world.publish_range(10..15, |_| None).await;

    // Those that have the numbers of events in flight come when these end.
    assert_eq!(payloads(&claim(&source, 10).await), ["13", "14"]);
}

#[tokio::test]
async fn many_scattered_holes_are_looked_for_all_at_once() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let mut late = world.pool().acquire().await.unwrap();
    let mut late = late.begin().await.unwrap();
    for n in 0..60 {
        let odd = event(&(2 * n + 1).to_string());
        world.publisher.publish(&mut late, odd).await.unwrap();
        world.publish(event(&(2 * n).to_string())).await;
    }
    assert_eq!(claim(&source, 100).await.len(), 60);
    let last = sqlx::query("SELECT holes IS NULL FROM outbox.outbox_lease")
        .fetch_one(world.pool())
        .await
        .unwrap();
    assert!(last.get::<bool, _>(0), "the case is gone");

    late.commit().await.unwrap();

    assert_eq!(claim(&source, 100).await.len(), 60);
}

/// Blocks that a claim of 50 events touches: a measure of work that no busy machine disturbs.
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
async fn a_claim_does_not_pass_over_what_is_in_flight() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..11_000, |_| None).await;
    claim(&source, 100).await;
    let few = blocks_of_a_claim(&world).await;

    for _ in 0..20 {
        claim(&source, 500).await;
    }

    let many = blocks_of_a_claim(&world).await;
    assert!(many <= 2 * few, "{many} blocks beside 10,000 in flight, {few} beside 100");
}
