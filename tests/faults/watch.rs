//! Which relay listens to publishers while all sleep, and when publishers need not notify.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgListener;
use sqlx::{Connection, Executor};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::world::{POLL, SLEEPER, Seen, World, attentive, handled, many, nonzero, numbered, relay};

const SOON: Duration = Duration::from_secs(2);

/// Who keeps watch: the process of the session that has the lock; 0 is nobody.
async fn watch(world: &World) -> i64 {
    world
        .number(&format!("SELECT coalesce(max(pid), 0)::bigint {SLEEPER}"))
        .await
}

/// Hears when the watch is given up.
async fn witness(world: &World) -> PgListener {
    let mut witness = PgListener::connect_with(world.pool()).await.unwrap();
    let lock = world.number("SELECT outbox.outbox_lock_number(2)").await;
    witness.listen(&format!("outbox_relays_{lock}")).await.unwrap();
    witness
}

#[tokio::test]
async fn a_relay_that_is_notified_of_a_few_events_sleeps_on_and_handles_each() {
    let world = World::new().await;
    let running = world.attentive_relay().await;
    world.until_asleep().await;
    let before = watch(&world).await;

    let mut kept = 0;
    for n in 0..20 {
        world.publish(numbered(n)).await;
        world.until("status = 'completed'", n as i64 + 1).await;
        kept += u32::from(watch(&world).await == before);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // On a machine that stands still for a moment, the relay may seem to have no room.
    assert!(kept >= 10, "awake after {} of 20 events", 20 - kept);
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn many_events_wake_a_relay_and_it_sleeps_again_when_they_are_done() {
    let world = World::new().await;
    let running = world.attentive_relay().await;
    let mut witness = witness(&world).await;
    world.until_asleep().await;

    let mut published = 0;
    while published == 0 || timeout(SOON, witness.recv()).await.is_err() {
        published += 1_000;
        assert!(published < 30_000, "the relay sleeps on");
        world.publish_all(many(1_000)).await;
    }

    world.until("status = 'completed'", published).await;
    world.until_asleep().await;
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn publishers_that_crowd_wake_a_relay_before_it_has_found_many_events() {
    let world = World::new().await;
    let running = world.attentive_relay().await;
    let mut witness = witness(&world).await;
    world.until_asleep().await;

    // All of them open at once, and each has met the first.
    let mut connections = Vec::new();
    for n in 0..10 {
        let mut connection = sqlx::PgConnection::connect_with(&world.database.connect_options())
            .await
            .unwrap();
        connection.execute("BEGIN").await.unwrap();
        world
            .publisher
            .publish(&mut connection, numbered(n))
            .await
            .unwrap();
        connections.push(connection);
    }
    for connection in &mut connections {
        connection.execute("COMMIT").await.unwrap();
    }

    timeout(POLL, witness.recv()).await.unwrap().unwrap();
    world.until("status = 'completed'", 10).await;
    running.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_relay_without_room_leaves_the_watch_to_another() {
    let world = World::new().await;
    let (stuck, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, freed) = (Arc::clone(&stuck), Arc::clone(&goes_on));
    let slow = handled(move |_, _| {
        let (told, freed) = (Arc::clone(&told), Arc::clone(&freed));
        async move {
            told.notify_one();
            freed.notified().await;
            Ok(())
        }
    });
    let first = relay(world.source().start().await.unwrap(), slow)
        .poll_timeout(POLL)
        .concurrency(nonzero(1))
        .build()
        .unwrap()
        .spawn();
    world.until_asleep().await;
    world.publish(numbered(0)).await;
    stuck.notified().await;
    let seen = Seen::default();
    let second = attentive(world.source().start().await.unwrap(), seen.dispatcher());

    for n in 1..=5 {
        world.until_asleep().await;
        let began = Instant::now();
        world.publish(numbered(n)).await;
        world.until("status = 'completed'", n as i64).await;
        assert!(began.elapsed() < SOON * 2, "event {n} took {:?}", began.elapsed());
    }

    assert_eq!(seen.sorted(), [1, 2, 3, 4, 5]);
    goes_on.notify_one();
    first.shutdown().await.unwrap();
    second.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_frozen_relay_that_keeps_watch_delays_an_event_by_two_seconds_and_the_next_not_at_all() {
    let world = World::new().await;
    // A session that has the lock, and nobody behind it who listens.
    let mut frozen = sqlx::PgConnection::connect_with(&world.database.connect_options())
        .await
        .unwrap();
    frozen
        .execute("SELECT pg_advisory_lock(outbox.outbox_lock_number(2))")
        .await
        .unwrap();
    let running = world.attentive_relay().await;
    // Long enough for the relay to rely on that lock.
    tokio::time::sleep(Duration::from_millis(700)).await;

    let mut took = Vec::new();
    for n in 0..7 {
        let began = Instant::now();
        world.publish(numbered(n)).await;
        world.until("status = 'completed'", n as i64 + 1).await;
        took.push(began.elapsed());
        // Until it does not look for more by itself.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }

    // The question is asked every two seconds, and waits its turn on a busy machine.
    assert!(took.iter().all(|took| *took < SOON * 2), "{took:?}");
    let soon = |took: &&Duration| **took < Duration::from_millis(500);
    assert!(took[2..].iter().filter(soon).count() >= 3, "{took:?}");
    running.shutdown().await.unwrap();
}
