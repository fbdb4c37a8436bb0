//! What a claim may take from the line of a key while it has not read all that is fresh.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{EventId, EventType, NewEvent, OrderingKey, Outcome, Payload};
use outbox_pg::Names;
use outbox_pg::PgSource;
use outbox_pg::admin::PgAdmin;
use sqlx::Row;
use support::{World, claim, event, settle};
use tokio::time::Instant;

fn keyed(event_type: &str) -> NewEvent {
    let event_type = EventType::new(event_type).unwrap();
    NewEvent::raw(event_type, Payload::from_json("1")).with_ordering_key(OrderingKey::new("k").unwrap())
}

/// Publishes an event of the key and has its first try fail.
async fn retried(world: &World, source: &PgSource, event_type: &str) -> EventId {
    let id = world.publish(keyed(event_type)).await;
    let retry = Outcome::Retry {
        after: Duration::from_millis(20),
        error: "later".to_owned(),
        done: Vec::new(),
    };
    settle(source, &claim(source, 1).await, retry).await;
    id
}

/// Waits until so many events of the key are due by the clock.
async fn until_due(world: &World, count: i64) {
    let due = "SELECT count(*) FROM outbox.outbox WHERE status = 'pending' AND ordering_key = 'k' \
               AND class <> 'fresh' AND available_at <= clock_timestamp()";
    let deadline = Instant::now() + Duration::from_secs(30);
    while sqlx::query(due)
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get::<i64, _>(0)
        < count
    {
        assert!(Instant::now() < deadline, "they never were due");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_due_schedule_waits_for_an_earlier_event_that_the_claim_has_not_read() {
    let world = World::new().await;
    let source = world.source().start().await.unwrap();
    let first = retried(&world, &source, "A").await;
    for _ in 0..20 {
        world.publish(event("1")).await;
    }
    let second = world.publish(keyed("A")).await;
    let third = world
        .publish(keyed("A").with_delay(Duration::from_millis(1)))
        .await;
    until_due(&world, 2).await;

    let mut order = Vec::new();
    while order.len() < 3 {
        let claimed = claim(&source, 4).await;
        assert!(!claimed.is_empty(), "{order:?} of 3 were claimed");
        order.extend(
            claimed
                .iter()
                .map(|claimed| claimed.id)
                .filter(|id| [first, second, third].contains(id)),
        );
        settle(&source, &claimed, Outcome::Completed).await;
    }

    assert_eq!(order, [first, second, third]);
}

#[tokio::test]
async fn a_paused_type_is_not_claimed_behind_another_of_its_key() {
    let world = World::new().await;
    let source = world.source().start().await.unwrap();
    let first = retried(&world, &source, "A").await;
    world.publish(keyed("B")).await;
    until_due(&world, 1).await;
    // The first claim puts the follower in line; then its type is paused.
    let claimed = claim(&source, 1).await;
    let back = Outcome::Released {
        after: Duration::ZERO,
        done: Vec::new(),
    };
    settle(&source, &claimed, back).await;
    let admin = PgAdmin::new(world.pool().clone(), &Names::default());
    admin
        .pause_type(&EventType::new("B").unwrap(), "a test")
        .await
        .unwrap();

    let claimed = claim(&source, 10).await;

    let ids: Vec<EventId> = claimed.iter().map(|claimed| claimed.id).collect();
    assert_eq!(ids, [first]);
}
