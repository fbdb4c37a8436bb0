//! From a transaction to a handler and back.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Delivered, Delivery, Dispatcher, Failure, Relay};
use sqlx::Row;
use support::{World, event};

/// Remembers what it was given.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

#[async_trait]
impl Dispatcher for Recorder {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.0
            .lock()
            .unwrap()
            .push(delivery.envelope.payload.as_str().to_owned());
        Ok(Delivered::Handled)
    }
}

#[tokio::test]
async fn committed_events_are_delivered_and_rolled_back_ones_are_not() {
    let world = World::new().await;
    let recorder = Arc::new(Recorder::default());
    let source = Arc::new(world.source().start().await.unwrap());
    let relay = Relay::builder(source, recorder.clone()).build().unwrap().spawn();

    let mut kept = world.pool().begin().await.unwrap();
    world
        .publisher
        .publish(&mut kept, event(r#"{"kept": 1}"#))
        .await
        .unwrap();
    kept.commit().await.unwrap();
    let mut dropped = world.pool().begin().await.unwrap();
    world
        .publisher
        .publish(&mut dropped, event(r#"{"kept": 2}"#))
        .await
        .unwrap();
    dropped.rollback().await.unwrap();
    world.publish(event(r#"{"kept": 3}"#)).await;

    world.until("status = 'completed'", 2).await;
    relay.shutdown().await.unwrap();
    let mut delivered = recorder.0.lock().unwrap().clone();
    delivered.sort();
    assert_eq!(delivered, [r#"{"kept": 1}"#, r#"{"kept": 3}"#]);
    assert_eq!(world.count("true").await, 2);
}

#[tokio::test]
async fn an_idle_relay_hears_of_an_event_long_before_it_would_poll() {
    let world = World::new().await;
    let recorder = Arc::new(Recorder::default());
    let source = Arc::new(world.source().start().await.unwrap());
    let relay = Relay::builder(source, recorder.clone())
        .poll_timeout(Duration::from_secs(60))
        .build()
        .unwrap()
        .spawn();

    for n in 0..5 {
        // Long enough that the relay has fallen asleep, so that this takes the way through NOTIFY.
        tokio::time::sleep(Duration::from_millis(400)).await;
        let began = tokio::time::Instant::now();
        world.publish(event(&n.to_string())).await;
        world.until("status = 'completed'", n + 1).await;
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "event {n} took {:?}",
            began.elapsed()
        );
    }
    relay.shutdown().await.unwrap();
}

/// Statements that other sessions than the asking one have committed in this database.
async fn statements(world: &World) -> i64 {
    let sql = "SELECT pg_stat_clear_snapshot(), xact_commit FROM pg_stat_database WHERE datname = current_database()";
    sqlx::query(sql).fetch_one(world.pool()).await.unwrap().get(1)
}

#[tokio::test]
async fn an_idle_relay_asks_the_database_next_to_nothing() {
    let world = World::new().await;
    let source = Arc::new(world.source().start().await.unwrap());
    let relay = Relay::builder(source, Arc::new(Recorder::default()))
        .build()
        .unwrap()
        .spawn();
    world.publish(event("1")).await;
    world.until("status = 'completed'", 1).await;
    // Sessions report what they did up to ten seconds late.
    tokio::time::sleep(Duration::from_secs(12)).await;

    let before = statements(&world).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let asked = statements(&world).await - before;

    // One look every 5 s and a sign of life every 2 s, of the relay; the rest is the server's own.
    assert!(asked < 30, "{asked} transactions in ten idle seconds");
    relay.shutdown().await.unwrap();
}
