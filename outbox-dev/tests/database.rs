//! One database per test: empty, apart from the others, gone afterwards, kept after a panic.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use outbox_dev::{DevPostgres, TestDatabase};
use sqlx::{Connection, PgConnection};

async fn exists(name: &str) -> bool {
    let server = DevPostgres::shared().await.unwrap();
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    let query = sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)").bind(name);
    query.fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn a_test_database_is_dropped_with_its_sessions() {
    let database = TestDatabase::create().await.unwrap();
    let name = database.name().to_owned();
    let open = database.pool().acquire().await.unwrap();
    assert!(exists(&name).await);

    drop(database);

    assert!(!exists(&name).await);
    drop(open);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tests_do_not_see_each_other() {
    let one = TestDatabase::create().await.unwrap();
    let other = TestDatabase::create().await.unwrap();
    sqlx::query("CREATE TABLE t ()")
        .execute(one.pool())
        .await
        .unwrap();

    let query = "SELECT to_regclass('t') IS NOT NULL";
    let seen: bool = sqlx::query_scalar(query).fetch_one(other.pool()).await.unwrap();

    assert!(!seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_database_is_dropped_in_a_runtime_of_many_threads() {
    let database = TestDatabase::create().await.unwrap();
    let name = database.name().to_owned();

    drop(database);

    assert!(!exists(&name).await);
}

#[tokio::test]
async fn a_test_database_is_kept_after_a_panic() {
    let database = TestDatabase::create().await.unwrap();
    let name = database.name().to_owned();

    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _held = database;
        panic!("as a failing test would");
    }));

    assert!(panicked.is_err());
    assert!(exists(&name).await);
    let server = DevPostgres::shared().await.unwrap();
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    let statement = sqlx::AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    sqlx::query(statement).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn the_password_is_not_shown_by_debug() {
    let database = TestDatabase::create().await.unwrap();

    let shown = format!("{database:?}");

    assert_eq!(
        shown,
        format!("TestDatabase {{ name: {:?}, .. }}", database.name())
    );
}
