//! Odd defaults of the database and statements that time out change nothing but the time it takes.

use std::time::Duration;

use outbox::{RetryPolicy, SourceErrorKind};
use sqlx::Connection;

use crate::world::{Seen, World, handled, many, nonzero, numbered, relay};

/// Events flow, are retried and scheduled as ever, under these defaults.
async fn events_flow_under(settings: &[&str]) {
    let world = World::new().await;
    for setting in settings {
        world.set_default(setting).await;
    }
    let source = world.source().start().await.unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let dispatcher = handled(move |event, context: outbox::Context| {
        let seen = noted.clone();
        async move {
            if context.attempt() == 1 && event.n % 2 == 0 {
                return Err(outbox::HandlerError::retry("once more"));
            }
            seen.add(event.n);
            Ok(())
        }
    });
    let retry = RetryPolicy::fixed(nonzero(3), Duration::from_millis(100));
    let running = relay(source, dispatcher).retry(retry).build().unwrap().spawn();
    let mut connection = sqlx::PgConnection::connect(world.database.url()).await.unwrap();

    let now = jiff::Timestamp::now();
    let mut events = many(10);
    events.push(numbered(10).deliver_at(now + Duration::from_millis(300)));
    events.push(numbered(11).with_delay(Duration::from_millis(300)));
    let published = world
        .publisher
        .publish_all(&mut connection, events)
        .await
        .unwrap();

    assert_eq!(published.new, 12);
    world.until("status = 'completed'", 12).await;
    let report = running.shutdown().await.unwrap();
    assert_eq!(
        (report.completed, report.retried, report.lost),
        (12, 6, 0),
        "{settings:?}"
    );
    assert_eq!(seen.sorted(), (0..12).collect::<Vec<_>>());
}

#[tokio::test]
async fn isolation_levels() {
    for level in ["repeatable read", "serializable"] {
        events_flow_under(&[&format!("default_transaction_isolation = '{level}'")]).await;
    }
}

#[tokio::test]
async fn time_zone_date_style_and_search_path() {
    events_flow_under(&[
        "TimeZone = 'Asia/Kathmandu'",
        "DateStyle = 'SQL, DMY'",
        "IntervalStyle = 'sql_standard'",
        "search_path = 'nowhere'",
        "extra_float_digits = 0",
        "bytea_output = 'escape'",
        "standard_conforming_strings = off",
    ])
    .await;
}

#[tokio::test]
async fn timeouts_of_locks_and_idle_sessions_and_read_only_sessions_of_the_relay() {
    events_flow_under(&[
        "lock_timeout = '1ms'",
        "idle_in_transaction_session_timeout = '1ms'",
        "statement_timeout = '20s'",
        "transform_null_equals = on",
        "session_replication_role = 'origin'",
    ])
    .await;
}

/// 57014: statements that are cancelled are tried again, and nobody is charged for it.
#[tokio::test]
async fn a_statement_timeout_that_no_claim_meets_delays_and_charges_nobody() {
    let world = World::new().await;
    world.publish_all(many(20)).await;
    let source = world.source().start().await.unwrap();
    let mut blocker = world.pool().begin().await.unwrap();
    // Claims wait for this lock until their statement is cancelled.
    sqlx::query("SELECT pg_advisory_xact_lock(outbox.outbox_lock_number(1))")
        .execute(&mut *blocker)
        .await
        .unwrap();
    world.set_default("statement_timeout = '100ms'").await;
    world.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox-relay' AND datname = current_database()").await;
    let running = relay(source, Seen::default().dispatcher())
        .build()
        .unwrap()
        .spawn();

    let health = running.health();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while health.consecutive_poll_errors() < 3 {
        assert!(tokio::time::Instant::now() < deadline, "{health:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    blocker.rollback().await.unwrap();

    world.until("status = 'completed'", 20).await;
    assert_eq!(world.count("retry_count > 0 OR claim_count > 0").await, 0);
    running.shutdown().await.unwrap();
}

/// What a server says about a missing table is told apart from what waiting can cure.
#[tokio::test]
async fn a_table_that_goes_missing_is_said_once_and_survived() {
    let world = World::new().await;
    let source = world.source().start().await.unwrap();
    let running = relay(source, Seen::default().dispatcher())
        .build()
        .unwrap()
        .spawn();
    world.run("ALTER TABLE outbox.outbox RENAME TO gone").await;
    let health = running.health();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while health.consecutive_poll_errors() < 1 {
        assert!(tokio::time::Instant::now() < deadline, "{health:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let other = world.source().start().await.err();

    world.run("ALTER TABLE outbox.gone RENAME TO outbox").await;
    world.publish(numbered(0)).await;

    world.until("status = 'completed'", 1).await;
    running.shutdown().await.unwrap();
    match other {
        Some(outbox::StartError::Source(error)) => assert_eq!(error.kind(), SourceErrorKind::Misconfigured),
        other => panic!("{other:?}"),
    }
}
