//! A server of our own stops, crashes and comes back on request.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

use outbox_dev::{DevPostgres, ServerOptions, Stop, TestDatabase};
use sqlx::{Connection, PgConnection};

async fn setting(server: &DevPostgres, name: &str) -> String {
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    sqlx::query_scalar("SELECT current_setting($1)")
        .bind(name)
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

async fn a_committed_row_outlives(how: Stop) {
    let server = DevPostgres::start_own(ServerOptions::default().with_fsync(true))
        .await
        .unwrap();
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    sqlx::query("CREATE TABLE t AS SELECT 42 AS answer")
        .execute(&mut connection)
        .await
        .unwrap();

    server.restart(how).await.unwrap();

    assert!(
        sqlx::query("SELECT 1").execute(&mut connection).await.is_err(),
        "the old session lives on"
    );
    let mut connection = PgConnection::connect(server.url()).await.unwrap();
    let answer: i32 = sqlx::query_scalar("SELECT answer FROM t")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(answer, 42);
}

#[tokio::test]
async fn a_fast_restart_keeps_port_and_data() {
    a_committed_row_outlives(Stop::Fast).await;
}

#[tokio::test]
async fn an_immediate_restart_keeps_port_and_data() {
    a_committed_row_outlives(Stop::Immediate).await;
}

#[tokio::test]
async fn a_killed_server_comes_back_with_port_and_data() {
    a_committed_row_outlives(Stop::Kill).await;
}

#[tokio::test]
async fn a_stopped_server_refuses_until_it_is_resumed() {
    let server = DevPostgres::start_own(ServerOptions::default()).await.unwrap();

    server.stop(Stop::Fast).await.unwrap();
    assert!(PgConnection::connect(server.url()).await.is_err());
    server.resume().await.unwrap();

    assert!(PgConnection::connect(server.url()).await.is_ok());
}

#[tokio::test]
async fn extra_settings_win() {
    let options = ServerOptions::default()
        .with_setting("max_prepared_transactions", "7")
        .with_setting("max_connections", "50")
        .with_setting("cluster_name", "it's mine");

    let server = DevPostgres::start_own(options).await.unwrap();

    assert_eq!(setting(&server, "max_prepared_transactions").await, "7");
    assert_eq!(setting(&server, "max_connections").await, "50");
    assert_eq!(setting(&server, "cluster_name").await, "it's mine");
    assert_eq!(setting(&server, "fsync").await, "off");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_database_can_live_on_an_own_server() {
    let server = DevPostgres::start_own(ServerOptions::default()).await.unwrap();
    let database = TestDatabase::create_on(&server).await.unwrap();

    server.restart(Stop::Fast).await.unwrap();

    let name: String = sqlx::query_scalar("SELECT current_database()::text")
        .fetch_one(database.pool())
        .await
        .unwrap();
    assert_eq!(name, database.name());
}
