//! What an operator does, seen by running relays.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Delivered, Delivery, Dispatcher, EventType, Failure, FailureKind, NewEvent, OrderingKey, Payload, Policy,
    Relay, RelayHandle, TenantId,
};
use outbox_pg::admin::FailedFilter;
use tokio::time::Instant;

use crate::admin;
use crate::support::{World, event};

/// Refuses everything until it is mended.
#[derive(Default)]
struct Mendable(AtomicBool);

#[async_trait]
impl Dispatcher for Mendable {
    async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
        match self.0.load(Ordering::SeqCst) {
            true => Ok(Delivered::Handled),
            false => Err(Failure::new(FailureKind::Reject, "broken")),
        }
    }
}

/// Polls once a minute only: what happens sooner, it was told.
async fn relay(world: &World, dispatcher: Arc<Mendable>) -> RelayHandle {
    let source = Arc::new(world.source().start().await.unwrap());
    let relay = Relay::builder(source, dispatcher).poll_timeout(Duration::from_secs(60));
    relay.build().unwrap().spawn()
}

#[tokio::test]
async fn a_sleeping_relay_hears_of_a_redrive_and_of_what_is_resumed() {
    let world = World::new().await;
    let (admin, dispatcher) = (admin(&world), Arc::new(Mendable::default()));
    let relay = relay(&world, Arc::clone(&dispatcher)).await;
    world.publish(event("1")).await;
    world.until("status = 'failed'", 1).await;
    let (kind, key) = (EventType::new("Counted").unwrap(), OrderingKey::new("k").unwrap());
    let other = NewEvent::raw(EventType::new("Other").unwrap(), Payload::from_json("1"));
    dispatcher.0.store(true, Ordering::SeqCst);

    // Each time long enough for the relay to fall asleep.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    admin
        .redrive(&FailedFilter::all(), "")
        .await
        .unwrap()
        .run()
        .await
        .unwrap();
    world.until("status = 'completed'", 1).await;

    admin.pause_type(&kind, "").await.unwrap();
    world.publish(event("2")).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.count("status = 'completed'").await, 1, "paused");
    admin.resume_type(&kind, "").await.unwrap();
    world.until("status = 'completed'", 2).await;

    admin.pause_key(&TenantId::default(), &key, "").await.unwrap();
    world.publish(other.with_ordering_key(key.clone())).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.count("status = 'completed'").await, 2, "paused");
    admin.resume_key(&TenantId::default(), &key, "").await.unwrap();
    world.until("status = 'completed'", 3).await;

    assert!(
        began.elapsed() < Duration::from_secs(20),
        "took {:?}",
        began.elapsed()
    );
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn all_relays_obey_a_pause_once_it_is_in_place() {
    let world = World::new().await;
    let dispatcher = Arc::new(Mendable(AtomicBool::new(true)));
    let relays = [
        relay(&world, dispatcher.clone()).await,
        relay(&world, dispatcher.clone()).await,
    ];
    world
        .publish_range(0..2000, |n| (n % 3 == 0).then(|| format!("k{}", n % 20)))
        .await;
    admin(&world)
        .pause_type(&EventType::new("Counted").unwrap(), "")
        .await
        .unwrap();
    world.publish_range(0..200, |_| None).await;
    // What was claimed before is finished; then nothing moves any more.
    while admin(&world).gauges(10).await.unwrap().in_flight > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let done = world.count("status = 'completed'").await;
    assert!(done <= 2000, "{done}");

    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(world.count("status = 'completed'").await, done);
    admin(&world)
        .resume_type(&EventType::new("Counted").unwrap(), "")
        .await
        .unwrap();
    world.until("status = 'completed'", 2200).await;

    for relay in relays {
        relay.shutdown().await.unwrap();
    }
}

/// Delivers one event after the other, each in a fifth of a second.
struct Slow;

#[async_trait]
impl Dispatcher for Slow {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(
            !delivery.cancelled.is_cancelled(),
            "what had begun was called off"
        );
        Ok(Delivered::Handled)
    }

    fn policy(&self, _: &EventType) -> Policy {
        Policy::default().with_concurrency(NonZeroU32::MIN)
    }
}

#[tokio::test]
async fn a_relay_hands_back_what_is_paused_before_it_has_begun() {
    for (key, type_is_paused) in [(Some("k"), true), (Some("k"), false), (None, true)] {
        let world = World::new().await;
        let (admin, tenant) = (admin(&world), TenantId::default());
        let (kind, k) = (EventType::new("Counted").unwrap(), OrderingKey::new("k").unwrap());
        world.publish_range(0..60, |_| key.map(str::to_owned)).await;
        let source = Arc::new(world.source().start().await.unwrap());
        let relay = Relay::builder(source, Arc::new(Slow)).poll_timeout(Duration::from_secs(1));
        let relay = relay.build().unwrap().spawn();
        world.until("status = 'completed'", 2).await;
        assert!(
            admin.gauges(100).await.unwrap().in_flight > 20,
            "many are in hand"
        );

        match type_is_paused {
            true => admin.pause_type(&kind, "").await.unwrap(),
            false => admin.pause_key(&tenant, &k, "").await.unwrap(),
        };
        let paused = Instant::now();
        while admin.gauges(100).await.unwrap().in_flight > 0 {
            let waited = paused.elapsed();
            assert!(waited < Duration::from_secs(5), "in flight for {waited:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let done = world.count("status = 'completed'").await;
        assert!(done < 40, "{done} were delivered");
        assert_eq!(
            world.count("status = 'pending' AND retry_count = 0").await,
            60 - done
        );

        match type_is_paused {
            true => admin.resume_type(&kind, "").await.map(drop).unwrap(),
            false => admin.resume_key(&tenant, &k, "").await.map(drop).unwrap(),
        }
        world.until("status = 'completed'", 60).await;
        relay.shutdown().await.unwrap();
    }
}
