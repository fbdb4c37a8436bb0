//! The invariants of publishing, by number.

use std::time::Duration;

use outbox::{EventType, NewEvent, Payload, PublishError};
use sqlx::Connection;
use tokio::time::Instant;

use crate::world::{Seen, World, many, numbered, relay};

#[tokio::test]
async fn invariant_1_an_event_is_in_the_table_if_and_only_if_its_transaction_committed() {
    let world = World::new().await;
    let mut kept = Vec::new();
    for n in 0..100 {
        let mut connection = world.pool().acquire().await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        let mut savepoint = transaction.begin().await.unwrap();
        world
            .publisher
            .publish(&mut savepoint, numbered(n))
            .await
            .unwrap();
        // Each of the four ways in which the two can end.
        let (inner, outer) = (n % 2 == 0, n % 4 < 2);
        match inner {
            true => savepoint.commit().await.unwrap(),
            false => savepoint.rollback().await.unwrap(),
        }
        match outer {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        if inner && outer {
            kept.push(n as i64);
        }
    }

    let stored: Vec<i64> = sqlx::query_scalar("SELECT (payload->>'n')::bigint FROM outbox.outbox ORDER BY 1")
        .fetch_all(world.pool())
        .await
        .unwrap();

    assert_eq!(stored, kept);
}

#[tokio::test]
async fn invariant_2_no_event_of_a_rolled_back_or_aborted_transaction_is_ever_dispatched() {
    let world = World::new().await;
    let seen = Seen::default();
    let running = relay(world.source().start().await.unwrap(), seen.dispatcher())
        .build()
        .unwrap()
        .spawn();
    for n in 0..60 {
        let mut connection = world.pool().acquire().await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        world
            .publisher
            .publish(&mut transaction, numbered(n))
            .await
            .unwrap();
        match n % 3 {
            0 => transaction.rollback().await.unwrap(),
            1 => {
                sqlx::query("SELECT 1 / 0")
                    .execute(&mut *transaction)
                    .await
                    .unwrap_err();
                // COMMIT of an aborted transaction rolls it back.
                let _ = transaction.commit().await;
            }
            _ => drop(transaction),
        }
    }
    world.publish(numbered(1_000)).await;

    world.until("status = 'completed'", 1).await;

    running.shutdown().await.unwrap();
    assert_eq!(seen.sorted(), [1_000]);
}

#[tokio::test]
async fn invariant_3_the_same_id_twice_is_one_row_and_a_distinguishable_result() {
    let world = World::new().await;
    let event = numbered(1);
    let mut winners = 0;
    let racers: Vec<_> = (0..8)
        .map(|_| {
            let (pool, publisher, event) = (world.pool().clone(), world.publisher.clone(), event.clone());
            tokio::spawn(async move {
                let mut transaction = pool.begin().await.unwrap();
                let published = publisher.publish(&mut transaction, event).await.unwrap();
                publisher.publish(&mut transaction, numbered(2)).await.unwrap();
                transaction.commit().await.unwrap();
                published
            })
        })
        .collect();

    for racer in racers {
        let published = racer.await.unwrap();
        assert_eq!(published.new + published.known, 1);
        winners += published.new;
    }

    assert_eq!(winners, 1);
    assert_eq!(world.count("payload->>'n' = '1'").await, 1);
    assert_eq!(
        world.count("payload->>'n' = '2'").await,
        8,
        "no transaction was poisoned"
    );
}

#[tokio::test]
async fn invariant_4_a_rejected_event_leaves_the_callers_transaction_usable() {
    let world = World::new().await;
    let mut transaction = world.pool().begin().await.unwrap();
    let bad = NewEvent::raw(EventType::new("Raw").unwrap(), Payload::from_json("no JSON"));

    let refused = world.publisher.publish(&mut transaction, bad).await;

    assert!(matches!(refused, Err(PublishError::Invalid(_))), "{refused:?}");
    world
        .publisher
        .publish(&mut transaction, numbered(1))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(world.count("true").await, 1);
}

#[tokio::test]
async fn invariant_5_publishing_dispatches_nothing_and_waits_for_no_relay() {
    let world = World::new().await;
    let mut blocker = world.pool().begin().await.unwrap();
    // As a relay that hangs in its claim, one that sleeps, and one whose settlement hangs.
    for lock in [1, 2] {
        sqlx::query("SELECT pg_advisory_xact_lock(outbox.outbox_lock_number($1))")
            .bind(lock)
            .execute(&mut *blocker)
            .await
            .unwrap();
    }
    sqlx::query("LOCK TABLE outbox.outbox_lease IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *blocker)
        .await
        .unwrap();

    let began = Instant::now();
    world.publish_all(many(100)).await;

    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(world.count("status = 'pending'").await, 100);
}
