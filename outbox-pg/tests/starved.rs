//! However many events stand in front that cannot be claimed now: what can be is found by one claim.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{Claimed, EventType, NewEvent, OrderingKey, Outcome, Payload, Source};
use outbox_pg::Names;
use outbox_pg::admin::PgAdmin;
use support::{World, claim, event, outcome, request};

fn keyed() -> NewEvent {
    event("1").with_ordering_key(OrderingKey::new("busy").unwrap())
}

fn of_type(name: &str) -> NewEvent {
    NewEvent::raw(EventType::new(name).unwrap(), Payload::from_json("1"))
}

fn types(claimed: &[Claimed]) -> Vec<String> {
    let mut types: Vec<String> = claimed
        .iter()
        .map(|claimed| claimed.envelope.as_ref().unwrap().event_type.to_string())
        .collect();
    types.sort();
    types
}

/// An event of the key is in flight, and so many schedules of the key are due behind it.
async fn with_a_busy_key(world: &World, source: &impl Source, due: u32) -> Claimed {
    world.publish(keyed()).await;
    let mut first = claim(source, 1).await;
    for _ in 0..due {
        world.publish(keyed().with_delay(Duration::from_millis(1))).await;
    }
    world
        .until("available_at <= clock_timestamp()", i64::from(due))
        .await;
    first.remove(0)
}

#[tokio::test]
async fn a_due_event_is_found_behind_many_of_a_busy_key() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let first = with_a_busy_key(&world, &source, 100).await;
    world
        .publish(of_type("Other").with_delay(Duration::from_millis(1)))
        .await;
    world
        .until("event_type = 'Other' AND available_at <= clock_timestamp()", 1)
        .await;

    assert_eq!(types(&claim(&source, 2).await), ["Other"]);

    // And those that were set aside come, in their order.
    let mut taken = first;
    for round in 1..=100 {
        let settled = source.settle(vec![outcome(&taken, Outcome::Completed)]).await;
        assert!(settled.unwrap().lost.is_empty());
        let mut next = claim(&source, 1).await;
        assert_eq!(next.len(), 1, "round {round}");
        let next = next.remove(0);
        assert!(next.position > taken.position);
        taken = next;
    }
}

#[tokio::test]
async fn a_resumed_type_is_found_behind_many_events_of_a_busy_key() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let admin = PgAdmin::new(world.pool().clone(), &Names::default());
    for name in ["Counted", "Other"] {
        admin
            .pause_type(&EventType::new(name).unwrap(), "a test")
            .await
            .unwrap();
    }
    for _ in 0..100 {
        world.publish(keyed()).await;
    }
    world.publish(of_type("Other")).await;
    // Barred, by claims that find them in their way.
    while world.count("class = 'barred'").await < 2 {
        claim(&source, 10).await;
    }
    world
        .run("UPDATE outbox.outbox SET class = 'barred' WHERE status = 'pending'")
        .await;
    for name in ["Counted", "Other"] {
        admin
            .resume_type(&EventType::new(name).unwrap(), "a test")
            .await
            .unwrap();
    }
    let first = claim(&source, 1).await;
    assert_eq!(types(&first), ["Counted"]);

    assert_eq!(types(&claim(&source, 2).await), ["Other"]);
}

#[tokio::test]
async fn resumed_events_take_turns_with_due_ones() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    for _ in 0..40 {
        world
            .publish(of_type("Due").with_delay(Duration::from_millis(1)))
            .await;
    }
    for _ in 0..40 {
        world.publish(of_type("Resumed")).await;
    }
    world
        .run("UPDATE outbox.outbox SET class = 'barred' WHERE event_type = 'Resumed'")
        .await;
    world.until("available_at <= clock_timestamp()", 40).await;

    let claimed = types(&claim(&source, 10).await);

    assert_eq!(claimed, [["Due"; 5], ["Resumed"; 5]].concat());
}

#[tokio::test]
async fn suspects_are_bounded_by_their_size_too() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..4, |_| None).await;
    claim(&source, 4).await;
    world
        .run("UPDATE outbox.outbox_lease SET until = clock_timestamp()")
        .await;
    let mut narrow = request(4);
    narrow.max_bytes = 3;

    let claimed = source.claim(narrow).await.unwrap();

    assert!(!claimed.is_empty() && claimed.len() < 4, "{}", claimed.len());
}

/// The ledger's mark does not go back with a transaction.
#[tokio::test]
async fn leases_taken_back_in_a_transaction_that_is_undone_are_taken_back_again() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..40, |_| None).await;
    for _ in 0..40 {
        claim(&source, 1).await;
    }
    world
        .run("UPDATE outbox.outbox_lease SET until = clock_timestamp()")
        .await;
    let undone = "BEGIN; SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 1, 1000, interval '1 minute', '{}'); ROLLBACK";
    world.run(undone).await;
    world.run(undone).await;

    claim(&source, 1).await;

    assert_eq!(world.count("class = 'waiting'").await, 40);
}

/// Two relays at once went down with the same events: each is tried as the only one of its kind, one after the other.
#[tokio::test]
async fn a_suspect_that_waits_for_another_is_looked_for_again() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..2, |_| None).await;
    world
        .run("UPDATE outbox.outbox SET class = 'waiting', available_at = clock_timestamp(), alone = 2")
        .await;

    let claimed = claim(&source, 2).await;

    assert_eq!(claimed.len(), 1);
    assert_eq!(world.count("outbox.outbox_next_due() <= 0").await, 2);
}
