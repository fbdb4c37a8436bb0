//! Migrations: at the same time, twice, beside an application's own, of other versions, and by hand.

use std::borrow::Cow;
use std::process::{Command, Stdio};

use outbox::{MigrateError, Names, SCHEMA_VERSION, check_version, migrate, migration_sql};
use outbox_dev::TestDatabase;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{Connection, PgConnection, PgPool, SqlSafeStr};

async fn database() -> TestDatabase {
    TestDatabase::create().await.expect("a database for the test")
}

async fn migrated(pool: &PgPool) -> Vec<i32> {
    migrate(&mut pool.acquire().await.unwrap(), &Names::default())
        .await
        .unwrap()
}

/// Whether these are all versions, one after the other.
fn is_all(applied: &[i32]) -> bool {
    applied.first() == Some(&1)
        && applied.last() == Some(&SCHEMA_VERSION)
        && applied.is_sorted_by(|a, b| a < b)
}

#[tokio::test]
async fn eight_starters_at_once_migrate_once_between_them() {
    let database = database().await;
    let mut starters = Vec::new();
    for _ in 0..8 {
        let url = database.url().to_owned();
        starters.push(tokio::spawn(async move {
            let mut connection = PgConnection::connect(&url).await.unwrap();
            migrate(&mut connection, &Names::default()).await.unwrap()
        }));
    }

    let mut applied = Vec::new();
    for starter in starters {
        applied.extend(starter.await.unwrap());
    }

    assert!(is_all(&applied), "{applied:?}");
    assert!(
        migrated(database.pool()).await.is_empty(),
        "a second time there is nothing to do"
    );
}

#[tokio::test]
async fn outboxes_of_other_names_live_side_by_side() {
    let database = database().await;
    let mut connection = database.pool().acquire().await.unwrap();

    for (schema, table) in [
        ("outbox", "outbox"),
        ("sales", "events"),
        ("sales", "outbox"),
        ("public", "outbox_Events"),
    ] {
        let names = Names::new(schema, table).unwrap();
        assert!(
            is_all(&migrate(&mut connection, &names).await.unwrap()),
            "{schema}.{table}"
        );
        check_version(&mut connection, &names).await.unwrap();
    }
}

/// An application that keeps its migrations as sqlx does.
fn application() -> Migrator {
    let first = Migration::new(
        1,
        Cow::Borrowed("orders"),
        MigrationType::Simple,
        sqlx::AssertSqlSafe("CREATE TABLE orders (id int)".to_owned()).into_sql_str(),
        false,
    );
    Migrator::with_migrations(vec![first])
}

#[tokio::test]
async fn the_applications_own_migrations_and_ours_do_not_refuse_each_other() {
    for ours_first in [true, false] {
        let database = database().await;
        let pool = database.pool();
        // Both start twice, as after a restart.
        for _ in 0..2 {
            if ours_first {
                migrated(pool).await;
            }
            application().run(pool).await.unwrap();
            if !ours_first {
                migrated(pool).await;
            }
        }
        check_version(&mut pool.acquire().await.unwrap(), &Names::default())
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_an_older_one_too_until_it_is_migrated() {
    let database = database().await;
    let mut connection = database.pool().acquire().await.unwrap();
    let names = Names::default();

    let missing = check_version(&mut connection, &names).await;
    assert!(
        matches!(missing, Err(MigrateError::Older { found: 0, .. })),
        "{missing:?}"
    );
    migrate(&mut connection, &names).await.unwrap();

    let newer = format!(
        "INSERT INTO outbox.outbox_migration VALUES ({}, 'later')",
        SCHEMA_VERSION + 1
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(newer))
        .execute(&mut *connection)
        .await
        .unwrap();
    let refusals = [
        check_version(&mut connection, &names).await.unwrap_err(),
        migrate(&mut connection, &names).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, MigrateError::Newer { .. }), "{refusal:?}");
        assert!(
            refusal
                .to_string()
                .contains(&format!("version {}", SCHEMA_VERSION + 1)),
            "{refusal}"
        );
    }
    let started = outbox::PgSource::builder(database.connect_options())
        .start()
        .await;
    assert!(
        matches!(
            started,
            Err(outbox::StartError::Schema(MigrateError::Newer { .. }))
        ),
        "{started:?}"
    );

    let older = "DELETE FROM outbox.outbox_migration WHERE version >= ";
    let older = format!("{older}{SCHEMA_VERSION}");
    sqlx::raw_sql(sqlx::AssertSqlSafe(older))
        .execute(&mut *connection)
        .await
        .unwrap();
    let started = outbox::PgSource::builder(database.connect_options())
        .start()
        .await;
    assert!(
        matches!(
            started,
            Err(outbox::StartError::Schema(MigrateError::Older { .. }))
        ),
        "{started:?}"
    );
}

/// What there is in a schema, one line each.
async fn catalog(pool: &PgPool) -> Vec<String> {
    let sql = "
        SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' '
                || coalesce(column_default, '') || ' ' || is_identity || ' ' || ordinal_position
            FROM information_schema.columns WHERE table_schema = 'outbox'
        UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'outbox'
        UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = 'outbox'::regnamespace
        UNION ALL SELECT 'function ' || pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc
            WHERE pronamespace = 'outbox'::regnamespace
        UNION ALL SELECT 'trigger ' || pg_get_triggerdef(trigger.oid) FROM pg_trigger AS trigger
            JOIN pg_class AS class ON class.oid = tgrelid WHERE relnamespace = 'outbox'::regnamespace
        UNION ALL SELECT 'relation ' || relname || ' ' || relkind::text || ' ' || coalesce(reloptions::text, '')
                || coalesce(relacl::text, '') || relrowsecurity || relforcerowsecurity
            FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
        UNION ALL SELECT 'policy ' || policyname || coalesce(qual, '') || coalesce(with_check, '') FROM pg_policies
            WHERE schemaname = 'outbox'
        UNION ALL SELECT 'migration ' || version || name FROM outbox.outbox_migration
        ORDER BY 1";
    sqlx::query_scalar(sql).fetch_all(pool).await.unwrap()
}

#[tokio::test]
async fn the_plain_sql_makes_the_same_schema() {
    let (by_code, by_hand) = (database().await, database().await);
    migrated(by_code.pool()).await;

    let psql = Command::new("psql")
        .args([
            "--no-psqlrc",
            "--quiet",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            by_hand.url(),
        ])
        .stdin(Stdio::piped())
        .spawn();
    let mut psql = psql.expect("psql, which comes with the server");
    let sql = migration_sql(&Names::default());
    std::io::Write::write_all(&mut psql.stdin.take().unwrap(), sql.as_bytes()).unwrap();
    assert!(psql.wait().unwrap().success());

    assert_eq!(catalog(by_code.pool()).await, catalog(by_hand.pool()).await);
    check_version(&mut by_hand.pool().acquire().await.unwrap(), &Names::default())
        .await
        .unwrap();
}
