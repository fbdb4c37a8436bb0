//! Publishing much, publishing twice, and publishing what cannot be.

use std::time::Duration;

use outbox::{
    EventId, EventType, HEADER_BYTES_MAX, NewEvent, PAYLOAD_BYTES_MAX, Payload, PgPublisher, PublishError,
    TenantId,
};
use outbox_dev::{DevPostgres, ServerOptions};
use sqlx::Connection;

use crate::world::{Seen, World, many, numbered, relay};

#[tokio::test]
async fn one_a_hundred_and_ten_thousand_events_in_one_transaction() {
    let world = World::new().await;
    let source = world.source().start().await.unwrap();
    let seen = Seen::default();
    let running = relay(source, seen.dispatcher()).build().unwrap().spawn();
    let mut all = 0;

    for size in [1, 100, 10_000] {
        let mut transaction = world.pool().begin().await.unwrap();
        let published = world
            .publisher
            .publish_all(&mut transaction, many(size))
            .await
            .unwrap();
        assert_eq!((published.new, published.known), (size, 0));
        transaction.commit().await.unwrap();
        all += size as i64;
        world.until("status = 'completed'", all).await;
    }

    running.shutdown().await.unwrap();
    assert_eq!(seen.len() as i64, all);
}

#[tokio::test]
async fn ten_thousand_single_events_in_one_transaction() {
    let world = World::new().await;
    let mut transaction = world.pool().begin().await.unwrap();
    for n in 0..10_000 {
        world
            .publisher
            .publish(&mut transaction, numbered(n))
            .await
            .unwrap();
    }
    transaction.commit().await.unwrap();

    assert_eq!(world.count("status = 'pending'").await, 10_000);
}

fn raw(payload: impl Into<Box<str>>) -> NewEvent {
    NewEvent::raw(EventType::new("Raw").unwrap(), Payload::from_json(payload))
}

/// Everything that a caller can get past the types.
fn refused() -> Vec<(&'static str, NewEvent)> {
    let text = |bytes: usize| format!("\"{}\"", "p".repeat(bytes - 2));
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    vec![
        ("too large by one", raw(text(PAYLOAD_BYTES_MAX + 1))),
        ("empty", raw("")),
        ("no JSON", raw("no JSON")),
        ("half JSON", raw("{\"a\": ")),
        ("two values", raw("1 2")),
        ("a NUL byte", raw("\"a\0b\"")),
        ("a control character", raw("\"a\u{1}b\"")),
        ("NaN", raw("NaN")),
        ("nested deeper than a handler could read", raw(nested(20_000))),
        ("header without a name", raw("1").with_header("", "x")),
        (
            "header with a long name",
            raw("1").with_header("x".repeat(201), "x"),
        ),
        (
            "header with a line break in its name",
            raw("1").with_header("a\nb", "x"),
        ),
        ("header with a NUL", raw("1").with_header("a", "x\0y")),
        (
            "headers too large",
            raw("1").with_header("a", "x".repeat(HEADER_BYTES_MAX)),
        ),
        ("nested a little too deep", raw(nested(128))),
    ]
}

#[tokio::test]
async fn whatever_is_refused_leaves_the_transaction_usable() {
    let world = World::new().await;
    let mut transaction = world.pool().begin().await.unwrap();
    for (what, event) in refused() {
        let one = world.publisher.publish(&mut transaction, event.clone()).await;
        let among = world
            .publisher
            .publish_all(&mut transaction, vec![numbered(0), event])
            .await;

        for (outcome, place) in [(one, ""), (among, "event 2 of the list: ")] {
            match outcome {
                Err(PublishError::Invalid(error)) => {
                    let text = error.to_string();
                    assert!(text.starts_with(place) && !text.contains("pp"), "{text}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
    }
    world
        .publisher
        .publish(&mut transaction, numbered(1))
        .await
        .unwrap();
    transaction.commit().await.unwrap();

    assert_eq!(world.count("true").await, 1);
}

#[tokio::test]
async fn whatever_is_taken_comes_out_as_it_went_in() {
    let world = World::new().await;
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let odd = [
        text(PAYLOAD_BYTES_MAX),
        " {\"b\" : 1,\n\t\"a\": 1.50, \"a\": 1e400, \"\\u0000\": \"\\ud83e\\udd80\"} ".to_owned(),
        "123456789012345678901234567890.10".to_owned(),
        "null".to_owned(),
        "\"\u{1F980}\u{FFFD}\"".to_owned(),
        format!("{}{}", "[".repeat(127), "]".repeat(127)),
    ];
    let mut transaction = world.pool().begin().await.unwrap();
    for payload in &odd {
        world
            .publisher
            .publish(&mut transaction, raw(payload.as_str()))
            .await
            .unwrap();
    }
    let far = [
        raw("1").deliver_at(jiff::Timestamp::MAX),
        raw("1").with_delay(Duration::MAX),
        raw("1").with_header("empty", "").with_header("é", "\u{1F980}\n"),
        raw("1").deliver_at(jiff::Timestamp::MIN),
        raw("1").with_id(EventId::from_uuid(uuid::Uuid::nil())),
    ];
    world.publisher.publish_all(&mut transaction, far).await.unwrap();
    transaction.commit().await.unwrap();
    let source = world.quiet_source().await;

    let request = outbox::ClaimRequest::new(crate::world::nonzero(100), Duration::from_secs(30));
    let claimed = outbox::Source::claim(&source, request.with_max_bytes(1 << 30))
        .await
        .unwrap();

    let payloads: Vec<_> = claimed
        .iter()
        .map(|one| one.envelope.as_ref().unwrap().payload.as_str())
        .collect();
    assert_eq!(payloads[..odd.len()], odd);
    assert_eq!(
        claimed.len(),
        odd.len() + 3,
        "the two that are far in the future wait"
    );
    assert_eq!(
        claimed[odd.len()].envelope.as_ref().unwrap().headers["é"],
        "\u{1F980}\n"
    );
}

#[tokio::test]
async fn the_same_id_twice_is_one_row_and_says_so() {
    let world = World::new().await;
    let mut transaction = world.pool().begin().await.unwrap();
    let (first, again) = (numbered(1), numbered(2));
    let again = again.with_id(first.id);
    let other_tenant = again.clone().with_tenant(TenantId::new("b").unwrap());

    let new = world
        .publisher
        .publish(&mut transaction, first.clone())
        .await
        .unwrap();
    let known = world
        .publisher
        .publish(&mut transaction, again.clone())
        .await
        .unwrap();
    let of_other = world
        .publisher
        .publish(&mut transaction, other_tenant)
        .await
        .unwrap();
    let batch = vec![first, again, numbered(3)];
    let mixed = world
        .publisher
        .publish_all(&mut transaction, batch)
        .await
        .unwrap();
    transaction.commit().await.unwrap();

    assert_eq!((new.new, new.known), (1, 0));
    assert_eq!((known.new, known.known), (0, 1));
    assert_eq!((of_other.new, of_other.known), (1, 0));
    assert_eq!((mixed.new, mixed.known), (1, 2));
    assert_eq!(world.count("true").await, 3);
    assert_eq!(world.count("payload->>'n' = '1'").await, 1, "the first one stays");
}

#[tokio::test]
async fn a_savepoint_takes_back_what_was_published_in_it() {
    let world = World::new().await;
    let mut connection = world.pool().acquire().await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    world
        .publisher
        .publish(&mut transaction, numbered(1))
        .await
        .unwrap();
    let mut dropped = transaction.begin().await.unwrap();
    world.publisher.publish(&mut dropped, numbered(2)).await.unwrap();
    dropped.rollback().await.unwrap();
    let mut kept = transaction.begin().await.unwrap();
    world.publisher.publish(&mut kept, numbered(3)).await.unwrap();
    kept.commit().await.unwrap();
    transaction.commit().await.unwrap();

    let seen = Seen::default();
    let running = relay(world.source().start().await.unwrap(), seen.dispatcher())
        .build()
        .unwrap()
        .spawn();
    world.until("status = 'completed'", 2).await;
    running.shutdown().await.unwrap();
    assert_eq!(seen.sorted(), [1, 3]);
}

#[tokio::test]
async fn two_phase_commit_works_with_wake_never() {
    let options = ServerOptions::default().with_setting("max_prepared_transactions", "10");
    let server = DevPostgres::start_own(options).await.unwrap();
    let world = World::on(&server).await;
    let publisher = PgPublisher::new(&outbox::Names::default());
    let seen = Seen::default();
    let source = world.quiet_source().await;
    let running = relay(source, seen.dispatcher()).build().unwrap().spawn();

    for (n, end) in [(1, "COMMIT"), (2, "ROLLBACK")] {
        let mut connection = world.pool().acquire().await.unwrap();
        sqlx::raw_sql("BEGIN; SET LOCAL outbox.wake = 'never'")
            .execute(&mut *connection)
            .await
            .unwrap();
        publisher.publish(&mut connection, numbered(n)).await.unwrap();
        sqlx::raw_sql("PREPARE TRANSACTION 'order'")
            .execute(&mut *connection)
            .await
            .unwrap();
        // Events of others are not held up by it, whatever the mark makes of it.
        world.publish(numbered(n + 10)).await;
        world
            .until("status = 'completed' AND payload->>'n' > '10'", n as i64)
            .await;
        let end = format!("{end} PREPARED 'order'");
        sqlx::raw_sql(sqlx::AssertSqlSafe(end))
            .execute(&mut *connection)
            .await
            .unwrap();
        world.until("status = 'pending'", 0).await;
    }

    running.shutdown().await.unwrap();
    assert_eq!(seen.sorted(), [1, 11, 12]);
}
