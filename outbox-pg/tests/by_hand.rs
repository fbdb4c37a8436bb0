//! What is written by hand, beside every interface: refused where it could harm other events, and confined otherwise.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use outbox_core::{PublishError, TenantId};
use outbox_dev::TestDatabase;
use outbox_pg::admin::PgAdmin;
use outbox_pg::{MigrateError, Names, check_version, migrate, migration_sql};
use sqlx::postgres::PgDatabaseError;
use sqlx::{AssertSqlSafe, Executor, PgConnection};
use support::{World, claim, event, payload};

const INSERT: &str = "INSERT INTO outbox.outbox (id, event_type, payload, ordering_key, class, available_at) \
     VALUES (gen_random_uuid(), 'Counted', '1', ";

#[tokio::test]
async fn a_plain_insert_cannot_wait_for_good() {
    let world = World::new().await;

    for (refused, why) in [
        (
            "NULL, 'scheduled', 'infinity'",
            "available_at is 'infinity'; a scheduled event",
        ),
        (
            "NULL, 'scheduled', NULL",
            "available_at is NULL; a scheduled event",
        ),
        (
            "NULL, 'waiting', '-infinity'",
            "available_at is '-infinity'; a waiting event",
        ),
        ("NULL, 'held', NULL", "ordering_key is NULL; a held event has one"),
        (
            "NULL, 'fresh', now()",
            "available_at is set; an event that is to wait has class scheduled",
        ),
        (
            "NULL, 'later', NULL",
            "class is 'later'; a pending event is fresh, scheduled, waiting, held or barred",
        ),
    ] {
        assert_refused(&world, &format!("{INSERT}{refused})"), why).await;
    }

    // In a line of its own it is found, and ahead of nobody.
    world.run(&format!("{INSERT}'k', 'held', NULL)")).await;
    world.run("SELECT outbox.outbox_sweep()").await;
    assert_eq!(claim(&world.quiet_source().await, 10).await.len(), 1);
}

/// Refused as no such event, for this reason; and the server tells nothing of the row, which may be personal.
async fn assert_refused(world: &World, insert: &str, why: &str) {
    let error = sqlx::query(AssertSqlSafe(insert.to_owned()))
        .execute(world.pool())
        .await
        .unwrap_err();
    let error = error.into_database_error().unwrap();
    assert_eq!(error.code().as_deref(), Some("23514"), "{insert}");
    let text = error.message();
    assert!(
        text.starts_with(&format!("the outbox takes no such event: {why}")),
        "{insert}: {text}"
    );
    assert_eq!(error.downcast_ref::<PgDatabaseError>().detail(), None, "{insert}");
}

/// Claims look for fresh events above the mark only, and for dead letters by their class.
#[tokio::test]
async fn a_status_changed_by_hand_needs_the_class_it_is_found_by() {
    let world = World::new().await;
    world.publish(event("1")).await;
    let change = |set: &str| format!("UPDATE outbox.outbox SET {set}");

    for (set, why) in [
        (
            "status = 'failed'",
            "class is 'fresh'; a failed event has class failed",
        ),
        ("class = 'done'", "class is 'done'; a pending event is fresh"),
        (
            "status = 'completed', class = 'waiting', available_at = now()",
            "class is 'waiting'; a completed event has class done",
        ),
    ] {
        assert_refused(&world, &change(set), why).await;
    }
    world
        .run(&change("status = 'completed', processed_at = now()"))
        .await;
    let why = "processed_at is set; an event that is to be delivered again";
    assert_refused(&world, &change("status = 'pending'"), why).await;

    let again = "status = 'pending', class = 'waiting', available_at = now(), processed_at = NULL";
    world.run(&change(again)).await;
    assert_eq!(claim(&world.quiet_source().await, 10).await.len(), 1);
}

#[tokio::test]
async fn a_plain_insert_is_told_what_is_wrong() {
    let world = World::new().await;

    for (column, value, why) in [
        ("event_type", "''", "event_type has 0 bytes; it takes 1 to 200"),
        (
            "event_type",
            "repeat('é', 101)",
            "event_type has 202 bytes; it takes 1 to 200",
        ),
        (
            "tenant_id",
            "repeat('t', 201)",
            "tenant_id has 201 bytes; it takes at most 200",
        ),
        (
            "ordering_key",
            "''",
            "ordering_key has 0 bytes; it takes 1 to 500",
        ),
        (
            "ordering_key",
            "repeat('k', 501)",
            "ordering_key has 501 bytes; it takes 1 to 500",
        ),
        (
            "aggregate_type",
            "repeat('a', 201)",
            "aggregate_type has 201 bytes; it takes 1 to 200",
        ),
        (
            "aggregate_id",
            "''",
            "aggregate_id has 0 bytes; it takes 1 to 500",
        ),
        ("headers", "'[]'", "headers are a json array; they are an object"),
        (
            "status",
            "'done'",
            "status is 'done'; it is pending, completed or failed",
        ),
    ] {
        let mut row = vec![("id", "gen_random_uuid()"), ("payload", "'1'"), (column, value)];
        if column != "event_type" {
            row.push(("event_type", "'Counted'"));
        }
        let (columns, values): (Vec<_>, Vec<_>) = row.into_iter().unzip();
        let (columns, values) = (columns.join(", "), values.join(", "));
        let insert = format!("INSERT INTO outbox.outbox ({columns}) VALUES ({values})");
        assert_refused(&world, &insert, why).await;
    }
}

#[tokio::test]
async fn a_null_among_the_done_parts_harms_its_event_alone() {
    let world = World::new().await;
    let broken = world.publish(event("1")).await;
    world.publish(event("2")).await;
    world
        .run("UPDATE outbox.outbox SET done_parts = ARRAY['a', NULL] WHERE payload::text = '1'")
        .await;

    let claimed = claim(&world.quiet_source().await, 10).await;

    let [bad, good] = claimed.as_slice() else {
        panic!("{} events", claimed.len());
    };
    let why = bad.envelope.as_ref().unwrap_err();
    assert_eq!(why.reason, "done_parts holds a NULL");
    assert_eq!(why.event_type.as_ref().map(AsRef::as_ref), Some("Counted"));
    assert_eq!(payload(good), "2");
    // An operator can look at it.
    let admin = PgAdmin::new(world.pool().clone(), &Names::default());
    let shown = admin.show(broken).await.unwrap();
    assert_eq!(shown[0].done_parts, ["a"]);
}

#[tokio::test]
async fn an_inherited_tenant_that_no_event_can_have_is_refused_and_costs_no_transaction() {
    let world = World::new().await;
    let of = |tenant: &str| event("1").with_tenant(TenantId::new(tenant).unwrap());

    for tenant in ["a".repeat(201), "a\nb".to_owned(), "\u{85}".to_owned()] {
        let mut tx = world.pool().begin().await.unwrap();
        let set = "SELECT set_config('app.current_tenant', $1, true)";
        sqlx::query(set).bind(&tenant).execute(&mut *tx).await.unwrap();

        let one = world.publisher.publish(&mut tx, event("1")).await;
        let many = world
            .publisher
            .publish_all(&mut tx, [event("1"), event("2")])
            .await;
        let mixed = world.publisher.publish_all(&mut tx, [event("1"), of("b")]).await;
        for refused in [one, many, mixed] {
            assert!(matches!(refused, Err(PublishError::Invalid(_))), "{refused:?}");
        }
        // One with a tenant of its own inherits nothing, and the transaction goes on.
        world.publisher.publish(&mut tx, of("c")).await.unwrap();

        // Statements for other drivers have no other way to say it than to fail.
        let statement = world.publisher.statement(event("1")).unwrap();
        let mut query = sqlx::query(AssertSqlSafe(statement.sql().to_owned()));
        for parameter in statement.parameters() {
            query = query.bind(parameter.clone());
        }
        let error = query.execute(&mut *tx).await.unwrap_err();
        assert!(error.to_string().contains("tenant id"), "{error}");
        tx.rollback().await.unwrap();
    }
    assert_eq!(world.count("true").await, 0);
}

async fn unversioned(connection: &mut PgConnection) {
    let names = Names::default();
    let found = migrate(connection, &names).await.unwrap_err();
    assert!(matches!(found, MigrateError::Unversioned { .. }), "{found:?}");
    let checked = check_version(connection, &names).await.unwrap_err();
    assert_eq!(checked.to_string(), found.to_string());
    assert!(found.to_string().contains("outbox migrate --sql"), "{found}");
}

#[tokio::test]
async fn files_that_were_run_one_by_one_are_told_from_an_old_version_and_the_script_is_whole() {
    let database = TestDatabase::create().await.expect("a database for the test");
    let mut connection = database.pool().acquire().await.unwrap();
    let first = include_str!("../../migrations/0001_outbox.sql");
    connection.execute("CREATE SCHEMA outbox").await.unwrap();
    sqlx::raw_sql(first).execute(&mut *connection).await.unwrap();

    unversioned(&mut connection).await;

    connection.execute("DROP SCHEMA outbox CASCADE").await.unwrap();
    let script = migration_sql(&Names::default());
    sqlx::raw_sql(AssertSqlSafe(script))
        .execute(&mut *connection)
        .await
        .unwrap();
    check_version(&mut connection, &Names::default()).await.unwrap();
    let applied = migrate(&mut connection, &Names::default()).await.unwrap();
    assert_eq!(applied, Vec::<i32>::new());
}
