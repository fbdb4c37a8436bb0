//! Waiting until events are delivered.

mod support;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Delivered, Delivery, Dispatcher, EventId, Failure, FailureKind, Relay, SourceErrorKind};
use outbox_pg::{DeliveryState, Names, wait_delivered};
use support::{World, event};
use tokio::time::Instant;

/// Delivers what is not `"bad"`.
struct Picky;

#[async_trait]
impl Dispatcher for Picky {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        match delivery.envelope.payload.as_str() {
            "\"bad\"" => Err(Failure::new(FailureKind::Reject, "bad indeed")),
            _ => Ok(Delivered::Handled),
        }
    }
}

#[tokio::test]
async fn a_barrier_returns_when_every_event_is_completed_or_failed() {
    let world = World::new().await;
    let source = Arc::new(world.source().start().await.unwrap());
    let relay = Relay::builder(source, Arc::new(Picky)).build().unwrap().spawn();
    let ids = [
        world.publish(event("1")).await,
        world.publish(event("\"bad\"")).await,
        world
            .publish(event("2").with_delay(Duration::from_millis(300)))
            .await,
    ];

    let states = wait_delivered(world.pool(), &Names::default(), &ids, Duration::MAX)
        .await
        .unwrap();

    relay.shutdown().await.unwrap();
    let failed = DeliveryState::Failed("bad indeed".to_owned());
    assert_eq!(
        states,
        [DeliveryState::Completed, failed, DeliveryState::Completed]
    );
}

#[tokio::test]
async fn a_barrier_ends_in_time_and_says_what_is_open() {
    let world = World::new().await;
    let ids = [world.publish(event("1")).await, EventId::new()];

    let states = wait_delivered(world.pool(), &Names::default(), &ids, Duration::from_millis(50))
        .await
        .unwrap();

    assert_eq!(states, [DeliveryState::Pending, DeliveryState::Missing]);
}

#[tokio::test]
async fn a_barrier_does_not_wait_for_what_was_there_and_is_gone() {
    let world = World::new().await;
    let late = world
        .publish(event("1").with_delay(Duration::from_millis(500)))
        .await;
    let source = world.source().delete_completed().start().await.unwrap();
    let relay = Relay::builder(Arc::new(source), Arc::new(Picky))
        .build()
        .unwrap()
        .spawn();
    let began = Instant::now();

    let states = wait_delivered(world.pool(), &Names::default(), &[late], Duration::from_secs(60))
        .await
        .unwrap();

    let took = began.elapsed();
    relay.shutdown().await.unwrap();
    assert_eq!(states, [DeliveryState::Missing], "it is not pending any more");
    assert!(took < Duration::from_secs(30), "waited {took:?}");
}

#[tokio::test]
async fn a_barrier_waits_for_a_connection_no_longer_than_for_all_the_rest() {
    let world = World::new().await;
    let id = world.publish(event("1")).await;
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(3600))
        .connect(world.database.url())
        .await
        .unwrap();
    let taken = pool.acquire().await.unwrap();
    let names = Names::default();
    let patience = Duration::from_secs(60);

    let (ids, no_time) = ([id], Duration::from_millis(200));
    let waiting = wait_delivered(&pool, &names, &ids, no_time);
    let refused = tokio::time::timeout(patience, waiting).await.expect("it ends");
    assert_eq!(refused.unwrap_err().kind(), SourceErrorKind::Unavailable);

    // What was seen before the connection went is known. Whoever asks for one first gets it first: here, the first look.
    drop(taken);
    let over = tokio::sync::Notify::new();
    let waiting = async {
        let states = wait_delivered(&pool, &names, &ids, Duration::from_secs(3)).await;
        over.notify_one();
        states
    };
    let taking = async {
        let _taken = pool.acquire().await.unwrap();
        over.notified().await;
    };
    let both = async { tokio::join!(waiting, taking) };
    let (states, ()) = tokio::time::timeout(patience, both).await.expect("it ends");
    assert_eq!(states.unwrap(), [DeliveryState::Pending]);
}
