//! The low-water mark: it follows what is settled, whatever snapshot is open, and never passes an event.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod emptied;
mod mended;
mod settled;
mod snapshot;
#[path = "../support/mod.rs"]
mod support;
mod traffic;

use outbox_dev::{DevPostgres, ServerOptions, TestDatabase};
use sqlx::{Executor, Row};
use support::{World, claim, event};

/// One look at where the mark could go, and at who may still write below.
pub(crate) async fn candidate(world: &World) -> (Option<i64>, Vec<String>) {
    let row = sqlx::query("SELECT * FROM outbox.outbox_mark_candidate()")
        .fetch_one(world.pool())
        .await
        .unwrap();
    (
        row.get(0),
        row.get::<Option<Vec<String>>, _>(1).unwrap_or_default(),
    )
}

pub(crate) async fn move_to(world: &World, candidate: i64, writers: &[String]) -> bool {
    let query = sqlx::query("SELECT outbox.outbox_mark_move($1, $2)")
        .bind(candidate)
        .bind(writers.to_vec());
    query.fetch_one(world.pool()).await.unwrap().get(0)
}

pub(crate) async fn mark(world: &World) -> i64 {
    sqlx::query("SELECT last_value FROM outbox.outbox_mark")
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get(0)
}

#[tokio::test]
async fn the_mark_waits_for_whoever_may_still_write_below_it() {
    let world = World::new().await;
    world.run("CREATE SCHEMA IF NOT EXISTS other").await;
    let mut early = world.pool().begin().await.unwrap();
    world.publisher.publish(&mut early, event("1")).await.unwrap();
    world.publish(event("2")).await;
    world.run("UPDATE outbox.outbox SET status = 'completed'").await;

    let (place, writers) = candidate(&world).await;
    let place = place.expect("something to move past");
    assert_eq!(place, 3);
    assert!(
        !move_to(&world, place, &writers).await,
        "moved past an open publisher"
    );
    early.commit().await.unwrap();
    assert!(move_to(&world, place, &writers).await);

    assert_eq!(
        mark(&world).await,
        0,
        "the event that was committed late is the first now"
    );
    let source = world.quiet_source().await;
    assert_eq!(claim(&source, 10).await.len(), 1);
}

#[tokio::test]
async fn a_prepared_transaction_stops_the_mark() {
    let server =
        DevPostgres::start_own(ServerOptions::default().with_setting("max_prepared_transactions", "5"))
            .await
            .unwrap();
    let world = World::on(TestDatabase::create_on(&server).await.unwrap()).await;
    let mut connection = world.pool().acquire().await.unwrap();
    connection
        .execute("BEGIN; SET LOCAL outbox.wake = 'never'")
        .await
        .unwrap();
    world
        .publisher
        .publish(&mut connection, event("1"))
        .await
        .unwrap();
    let (place, writers) = {
        world.publish(event("2")).await;
        world.run("UPDATE outbox.outbox SET status = 'completed'").await;
        candidate(&world).await
    };
    connection.execute("PREPARE TRANSACTION 'late'").await.unwrap();

    let moved = move_to(&world, place.unwrap(), &writers).await;
    assert!(!moved, "the prepared transaction was taken for ended");
    connection.execute("COMMIT PREPARED 'late'").await.unwrap();
    assert!(move_to(&world, place.unwrap(), &writers).await);

    assert_eq!(mark(&world).await, 0);
}
