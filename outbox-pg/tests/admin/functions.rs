//! The operators' functions, called by hand: what they refuse, and what they record.

use std::time::Duration;

use outbox_pg::admin::FailedFilter;
use sqlx::{AssertSqlSafe, Row};

use crate::admin;
use crate::support::World;

/// What the server says against a statement: SQLSTATE and message.
async fn refusal(world: &World, sql: &str) -> (String, String) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(world.pool())
        .await;
    let error = done.expect_err(sql).into_database_error().unwrap();
    (
        error.code().unwrap_or_default().into_owned(),
        error.message().to_owned(),
    )
}

async fn number(world: &World, sql: &str) -> i64 {
    let row = sqlx::query(AssertSqlSafe(sql.to_owned()))
        .fetch_one(world.pool())
        .await;
    row.expect(sql).get(0)
}

const FAILED: &str = "INSERT INTO outbox.outbox (id, event_type, payload, status, class, error, processed_at) \
     VALUES (gen_random_uuid(), 'Counted', '1', 'failed', 'failed', 'gateway timeout', clock_timestamp())";

#[tokio::test]
async fn a_filter_that_is_not_understood_picks_nothing_and_leaves_no_action() {
    let world = World::new().await;
    world.run(FAILED).await;

    for (filter, named) in [
        ("{\"event_tpye\": \"Counted\"}", "a member \"event_tpye\""),
        (
            "{\"event_type\": null}",
            "\"event_type\" of the filter is of type null",
        ),
        ("{\"error\": \"\"}", "\"error\" of the filter is empty"),
        (
            "{\"older_ms\": \"5\"}",
            "\"older_ms\" of the filter is of type string",
        ),
        ("{\"newer_ms\": -1}", "\"newer_ms\" of the filter is below 0"),
        ("{\"ids\": \"1\"}", "\"ids\" of the filter is of type string"),
        ("[]", "no JSON object"),
    ] {
        for sql in [
            format!("SELECT outbox.outbox_begin_action('redrive', '{filter}')"),
            format!("SELECT outbox.outbox_begin_action('discard', '{filter}')"),
            format!("SELECT FROM outbox.outbox_find_failed('{filter}', clock_timestamp(), 0, NULL, false)"),
        ] {
            let (code, message) = refusal(&world, &sql).await;
            assert_eq!(code, "22023", "{message}");
            assert!(message.contains(named), "{message}");
        }
    }
    let (code, message) = refusal(&world, "SELECT outbox.outbox_begin_action('redirve', '{}')").await;
    assert_eq!(
        (code.as_str(), message.contains("\"redirve\"")),
        ("22023", true),
        "{message}"
    );
    // Pausing refuses it too, by the table's own constraint.
    let (code, message) = refusal(&world, "SELECT outbox.outbox_resume('typ', '', 'Counted')").await;
    assert_eq!(
        (code.as_str(), message.contains("\"typ\"")),
        ("22023", true),
        "{message}"
    );
    let audit = "SELECT count(*) FROM outbox.outbox_audit";
    assert_eq!(number(&world, audit).await, 0);
}

#[tokio::test]
async fn a_step_that_would_come_no_further_is_refused() {
    let world = World::new().await;
    world.run(FAILED).await;
    let begin = "SELECT outbox.outbox_begin_action('redrive', '{}')";
    let begun = number(&world, begin).await;

    for size in ["0", "-1", "NULL"] {
        for step in [
            format!("SELECT * FROM outbox.outbox_act({begun}, {size})"),
            format!("SELECT * FROM outbox.outbox_prune('7 days', false, 0, {size})"),
            format!("SELECT * FROM outbox.outbox_prune_inbox('7 days', 0, {size})"),
        ] {
            let (code, message) = refusal(&world, &step).await;
            assert_eq!(code, "22023", "{message}");
            assert!(message.contains("or more, not"), "{message}");
        }
    }
    assert_eq!(world.count("status = 'failed'").await, 1);
}

#[tokio::test]
async fn an_empty_part_of_the_error_is_refused_and_said() {
    let world = World::new().await;
    world.run(FAILED).await;
    let admin = admin(&world);
    let empty = FailedFilter::all().with_error("");

    let refused = [
        admin.redrive(&empty, "").await.unwrap_err(),
        admin.discard(&empty, "").await.unwrap_err(),
        admin.preview_redrive(&empty, 3).await.unwrap_err(),
    ];

    for error in refused {
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("an empty part of the error"), "{cause}");
    }
    assert_eq!(world.count("status = 'failed'").await, 1);
}

#[tokio::test]
async fn a_pass_that_deletes_leaves_one_row_in_the_audit_and_an_empty_one_none() {
    let world = World::new().await;
    world
        .run(
            "INSERT INTO outbox.outbox (id, event_type, payload, status, processed_at) \
             SELECT gen_random_uuid(), 'Counted', '1', 'completed', clock_timestamp() FROM generate_series(1, 1000)",
        )
        .await;
    let admin = admin(&world);
    let audit = "SELECT count(*) FROM outbox.outbox_audit";

    let young = admin.pruner(Duration::from_secs(3600)).run_once().await.unwrap();
    assert_eq!((young.events, number(&world, audit).await), (0, 0));
    let pruner = admin.pruner(Duration::ZERO).pages(1).reason("full disk");
    assert_eq!(pruner.run_once().await.unwrap().events, 1000);

    let told = format!(
        "{audit} WHERE action = 'prune' AND events = 1000 AND actor = 'ada' AND reason = 'full disk' \
         AND filter::text LIKE '%\"retention_ms\" : 0%' AND finished_at IS NOT NULL"
    );
    assert_eq!(number(&world, &told).await, 1);
    assert_eq!(number(&world, audit).await, 1);
    // By hand, a call that names no row of a prune deletes nothing.
    world.run(FAILED).await;
    let sql = "SELECT FROM outbox.outbox_prune('0 s', true, 0, 100, p_audit => 99)";
    assert_eq!(refusal(&world, sql).await.0, "42704");
    assert_eq!(world.count("status = 'failed'").await, 1);
}

#[tokio::test]
async fn what_the_docs_tell_to_type_works() {
    let world = World::new().await;
    world.run(FAILED).await;
    let docs = include_str!("../../../docs/operations.md");
    let (_, section) = docs.split_once("## By psql").unwrap();
    let (_, block) = section.split_once("```sql\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let plain = |line: &str| line.split("--").next().unwrap_or_default().trim().to_owned();
    let typed: Vec<String> = block.lines().map(plain).filter(|line| !line.is_empty()).collect();
    assert!(typed.len() > 8, "{typed:?}");

    for line in typed {
        // Its number there, and what psql repeats.
        let begun = "(SELECT max(number) FROM outbox.outbox_audit WHERE finished_at IS NULL)";
        let line = line
            .replace("act(17", &format!("act({begun}"))
            .replace("\\watch 0.1", "");
        world.run(&line).await;
    }

    let told = "SELECT string_agg(action, ' ' ORDER BY number) FROM outbox.outbox_audit";
    let told: String = sqlx::query_scalar(told).fetch_one(world.pool()).await.unwrap();
    assert_eq!(told, "pause resume pause redrive reopen");
}
