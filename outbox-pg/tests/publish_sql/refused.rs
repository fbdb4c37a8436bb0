//! What the function refuses, and what it does not, by the measure of the other publishers.

use outbox_core::{AggregateId, EventType, InvalidEvent, NewEvent, OrderingKey, Payload, PublishError};
use sqlx::{Acquire, AssertSqlSafe};

use crate::support::World;

/// JSON that is nested so deep, with brackets in its strings.
fn nested(levels: usize) -> String {
    let (objects, rest) = (levels / 2, levels % 2);
    let (open, close) = ("[".repeat(rest), "]".repeat(rest));
    let (inner, outer) = (r#"[{"]\\\"[{": "#.repeat(objects), "}]".repeat(objects));
    format!("{open}{inner}1{outer}{close}")
}

/// Arguments that the function refuses, in which words, and the same event for the publisher, where it can be said in Rust.
type Case = (String, &'static str, Option<Result<NewEvent, InvalidEvent>>);

fn refused() -> Vec<Case> {
    let x = |payload: &str| NewEvent::raw(EventType::new("X").unwrap(), Payload::from_json(payload));
    let of_type = |name: &str| Some(EventType::new(name).map(|_| x("1")).map_err(InvalidEvent::from));
    let with_key = |key: &str| Some(OrderingKey::new(key).map(|_| x("1")).map_err(InvalidEvent::from));
    let about = |id: &str| Some(AggregateId::new(id).map(|_| x("1")).map_err(InvalidEvent::from));
    let with_header = |name: &str, value: &str| Some(Ok(x("1").with_header(name, value)));
    let case = |arguments: &str, message, event| (arguments.to_owned(), message, event);
    let long = "x".repeat(1 << 20);
    vec![
        case(
            "'', '1'",
            "event type is empty; it takes 1 to 200 bytes",
            of_type(""),
        ),
        case(
            "repeat('é', 101), '1'",
            "event type has 202 bytes; it takes at most 200",
            of_type(&"é".repeat(101)),
        ),
        case(
            "E'a\\nb', '1'",
            "event type holds the control character U+000A at byte 1; only printable text is accepted",
            of_type("a\nb"),
        ),
        case(
            "E'é\\u0085b', '1'",
            "event type holds the control character U+0085 at byte 2; only printable text is accepted",
            of_type("é\u{85}b"),
        ),
        case("NULL, '1'", "event type is NULL; it takes 1 to 200 bytes", None),
        case(
            "'X', NULL",
            "event X has NULL for its payload; where JSON null is meant, write 'null'",
            None,
        ),
        case(
            "'X', '1', ordering_key => ''",
            "ordering key is empty; it takes 1 to 500 bytes",
            with_key(""),
        ),
        case(
            "'X', '1', aggregate_id => repeat('x', 501)",
            "aggregate id has 501 bytes; it takes at most 500",
            about(&"x".repeat(501)),
        ),
        case(
            "'X', '1', headers => NULL",
            "event X has NULL for its headers; where none are meant, leave them out",
            None,
        ),
        case(
            "'X', '1', headers => '[]'",
            "headers of event X are a JSON array, not an object",
            None,
        ),
        case(
            "'X', '1', headers => '{\"a\": 1}'",
            "header \"a\" of event X is a JSON number, not a string",
            None,
        ),
        case(
            "'X', '1', headers => '{\"a\": \"1\", \"b\": \"2\", \"a\": \"1\"}'",
            "header \"a\" of event X is given 2 times; it takes one value",
            None,
        ),
        case(
            "'X', '1', headers => '{\"\": \"1\"}'",
            "header name is empty; it takes 1 to 200 bytes",
            with_header("", "1"),
        ),
        case(
            "'X', '1', headers => '{\"a\\tb\": \"1\"}'",
            "header name holds the control character U+0009 at byte 1; only printable text is accepted",
            with_header("a\tb", "1"),
        ),
        case(
            "'X', '1', headers => '{\"a\": \"x\\u0000y\"}'",
            "a header of event X holds a NUL character or half of a surrogate pair; remove it",
            with_header("a", "x\0y"),
        ),
        case(
            "'X', '1', headers => '{\"a\": \"\\ud800\"}'",
            "a header of event X holds a NUL character or half of a surrogate pair; remove it",
            None,
        ),
        case(
            "'X', '1', headers => json_build_object('a', repeat('x', 16384))",
            "header \"a\" of event X is the largest of 16385 bytes of headers; at most 16384 are accepted",
            with_header("a", &"x".repeat(16384)),
        ),
        case(
            "'X', to_json(repeat('x', 1048576))",
            "event X has a payload of 1048578 bytes; at most 1048576 are accepted",
            Some(Ok(x(&format!("{long:?}")))),
        ),
        case(
            &format!("'X', '{}'", nested(128)),
            "event X has a payload that is nested too deep; at most 127 levels are accepted",
            Some(Ok(x(&nested(128)))),
        ),
        case(
            r#"'X', '{"a": ["\\\ud83d\ude00", "\\\uD83D\\\uDE00"]}'"#,
            "event X has a payload with half of a surrogate pair; no text can have one",
            Some(Ok(x(r#"{"a": ["\\\ud83d\ude00", "\\\uD83D\\\uDE00"]}"#))),
        ),
        case(
            "'X', '1', delay => '1 s', deliver_at => now()",
            "event X has both deliver_at and delay; give one",
            None,
        ),
        case(
            "'X', '1', deliver_at => 'infinity'",
            "deliver_at of event X is infinity; it takes an instant up to the year 9999",
            None,
        ),
        case(
            "'X', '1', deliver_at => '9999-12-31 UTC'",
            "deliver_at of event X is 9999-12-31 00:00:00+00; it takes an instant up to the year 9999",
            None,
        ),
    ]
}

#[tokio::test]
async fn what_the_other_publishers_refuse_is_refused_with_a_reason() {
    let world = World::new().await;
    let mut connection = world.pool().acquire().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    sqlx::query("SET LOCAL TimeZone = 'UTC'")
        .execute(&mut *tx)
        .await
        .unwrap();

    for (arguments, message, event) in refused() {
        // A savepoint: a failed statement would end the caller's transaction.
        let mut savepoint = tx.begin().await.unwrap();
        let sql = AssertSqlSafe(format!("SELECT outbox.outbox_publish({arguments})"));
        let error = sqlx::query(sql).execute(&mut *savepoint).await.unwrap_err();
        let error = error.into_database_error().unwrap();
        assert_eq!(error.message(), message, "{arguments}");
        assert_eq!(error.code().unwrap(), "22023", "{arguments}");
        savepoint.rollback().await.unwrap();

        // The publisher sends nothing, so that its caller needs no savepoint.
        let event = match event {
            Some(Ok(event)) => event,
            Some(Err(refusal)) => {
                assert_eq!(refusal.to_string(), message);
                continue;
            }
            None => continue,
        };
        let statement = world.publisher.statement(event.clone());
        assert!(statement.is_err(), "{arguments}");
        let all = world.publisher.publish_all(&mut tx, [event.clone()]).await;
        assert!(matches!(all, Err(PublishError::Invalid(_))), "{arguments}");
        let one = world.publisher.publish(&mut tx, event).await;
        assert!(matches!(one, Err(PublishError::Invalid(_))), "{arguments}");
    }
    tx.commit().await.unwrap();
    assert_eq!(world.count("true").await, 0);
}

#[tokio::test]
async fn what_is_just_within_its_limit_is_published() {
    let world = World::new().await;
    let due = |condition: &str| format!("available_at {condition}");
    let cases = [
        (format!("'{}'", nested(127)), due("IS NULL")),
        // Many brackets, none deep.
        (
            "('[' || repeat('[],{},', 1000) || '\"[[[\"]')::json".to_owned(),
            due("IS NULL"),
        ),
        ("to_json(repeat('x', 1048574))".to_owned(), due("IS NULL")),
        (
            r#"'["\uD83D\ude00\\ud800", "\\\\uDE00", "\u00e4\ud7ff\ue000"]'"#.to_owned(),
            due("IS NULL"),
        ),
        (
            r#"'1', headers => '{"a": "\ud83d\ude00", "b": "x\ny"}'"#.to_owned(),
            r"headers ->> 'a' = U&'\+01F600'".to_owned(),
        ),
        ("'1', deliver_at => '4700-01-01 BC'".to_owned(), due("= 'epoch'")),
        (
            "'1', deliver_at => '9999-12-30 UTC'".to_owned(),
            due("= '9999-12-30 UTC'"),
        ),
        (
            "'1', delay => '-1 day'".to_owned(),
            due("BETWEEN now() - interval '1 minute' AND now()"),
        ),
        (
            "'1', delay => '170000000 years'".to_owned(),
            due("BETWEEN now() + interval '99 years' AND now() + interval '101 years'"),
        ),
    ];
    for (arguments, expected) in cases {
        world
            .run(&format!("SELECT outbox.outbox_publish('X', {arguments})"))
            .await;
        assert_eq!(world.count(&expected).await, 1, "{arguments}: {expected}");
        world.run("TRUNCATE outbox.outbox").await;
    }
    let deepest = NewEvent::raw(EventType::new("X").unwrap(), Payload::from_json(nested(127)));
    world.publish(deepest).await;
}

/// A setting of old applications, under which a backslash in a plain literal escapes what follows.
#[tokio::test]
async fn backslashes_in_the_function_do_not_depend_on_the_session() {
    let world = World::new().await;
    let mut connection = world.pool().acquire().await.unwrap();
    let mut run = async |sql: &'static str| sqlx::raw_sql(sql).execute(&mut *connection).await;
    run("SET standard_conforming_strings = off; SET escape_string_warning = off")
        .await
        .unwrap();

    run(r#"SELECT outbox.outbox_publish('X', E'{"crab": "\\ud83e\\udd80"}')"#)
        .await
        .unwrap();
    let refused = run(r#"SELECT outbox.outbox_publish('X', E'{"crab": "\\ud83e"}')"#)
        .await
        .unwrap_err();
    run("RESET standard_conforming_strings").await.unwrap();

    let said = refused.to_string();
    assert!(said.contains("half of a surrogate pair"), "{said}");
}
