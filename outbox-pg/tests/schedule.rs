//! Events for later: by the database's clock, never early, in nobody's way.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{NewEvent, OrderingKey, Outcome, Source};
use outbox_dev::{DevPostgres, ServerOptions, Stop, TestDatabase};
use outbox_pg::{Names, PgPublisher, PgSource, migrate};
use support::{World, claim, event, outcome, payload};

fn keyed(n: u32) -> NewEvent {
    event(&n.to_string()).with_ordering_key(OrderingKey::new("k").unwrap())
}

/// Claims until something comes.
async fn next(source: &PgSource) -> outbox_core::Claimed {
    loop {
        if let Some(claimed) = claim(source, 1).await.pop() {
            return claimed;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_delayed_event_comes_when_its_time_has_come_by_the_database_clock_and_not_before() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world
        .publish(event("1").with_delay(Duration::from_millis(700)))
        .await;
    assert!(claim(&source, 10).await.is_empty());

    next(&source).await;

    assert_eq!(world.count("clock_timestamp() >= available_at").await, 1);
    assert_eq!(
        world
            .count("available_at - created_at BETWEEN '699 ms' AND '1 s'")
            .await,
        1
    );
}

#[tokio::test]
async fn an_event_is_due_at_the_instant_that_was_named_whatever_the_time_zone() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let instant: jiff::Timestamp = "2120-02-29T12:34:56.789012Z".parse().unwrap();
    let past: jiff::Timestamp = "2001-01-01T00:00:00Z".parse().unwrap();
    let mut connection = world.pool().acquire().await.unwrap();
    sqlx::query("SET TimeZone = 'Asia/Kathmandu'")
        .execute(&mut *connection)
        .await
        .unwrap();
    for event in [event("1").deliver_at(instant), event("2").deliver_at(past)] {
        world.publisher.publish(&mut connection, event).await.unwrap();
    }

    assert_eq!(
        payload(&next(&source).await),
        "2",
        "an instant in the past is due at once"
    );
    assert!(claim(&source, 10).await.is_empty());
    assert_eq!(
        world
            .count("available_at = '2120-02-29 12:34:56.789012+00'")
            .await,
        1
    );
}

#[tokio::test]
async fn a_schedule_blocks_nobody_of_its_key_before_it_is_due_and_takes_its_place_then() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world
        .publish(keyed(1).with_delay(Duration::from_secs(3600)))
        .await;
    world.publish(keyed(2)).await;
    assert_eq!(payload(&next(&source).await), "2");
    world.publish(keyed(3)).await;
    assert!(claim(&source, 10).await.is_empty(), "2 is in flight");

    // An hour passes while 2 is being handled.
    world
        .run("UPDATE outbox.outbox SET available_at = now() WHERE class = 'scheduled'")
        .await;
    assert!(claim(&source, 10).await.is_empty(), "2 is in flight");
    world.run("UPDATE outbox.outbox_lease SET until = now()").await;

    let mut order = Vec::new();
    while order.len() < 3 {
        let claimed = next(&source).await;
        order.push(payload(&claimed));
        source
            .settle(vec![outcome(&claimed, Outcome::Completed)])
            .await
            .unwrap();
    }
    assert_eq!(
        order,
        ["1", "2", "3"],
        "due, the schedule is the earliest of its key"
    );
}

#[tokio::test]
async fn thousands_of_schedules_ahead_do_not_delay_what_is_due() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let later = (0..5000).map(|n| event(&n.to_string()).with_delay(Duration::from_secs(3600)));
    let mut connection = world.pool().acquire().await.unwrap();
    world.publisher.publish_all(&mut connection, later).await.unwrap();
    world.publish(event("-1")).await;

    let first = claim(&source, 10).await;

    assert_eq!(first.len(), 1);
    assert_eq!(payload(&first[0]), "-1");
}

#[tokio::test]
async fn a_schedule_survives_a_crash_of_the_server() {
    let server = DevPostgres::start_own(ServerOptions::default()).await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();
    let mut connection = database.pool().acquire().await.unwrap();
    migrate(&mut connection, &Names::default()).await.unwrap();
    // Tests run without waiting for the disk; a killed server would forget the last commits.
    sqlx::query("SET synchronous_commit = on")
        .execute(&mut *connection)
        .await
        .unwrap();
    let publisher = PgPublisher::new(&Names::default());
    let soon = event("1").with_delay(Duration::from_secs(2));
    publisher.publish(&mut connection, soon).await.unwrap();
    drop(connection);

    server.restart(Stop::Kill).await.unwrap();

    let source = PgSource::builder(database.connect_options())
        .poll_only()
        .start()
        .await
        .unwrap();
    assert_eq!(payload(&next(&source).await), "1");
}
