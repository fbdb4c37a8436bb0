//! The examples of publishing from other languages, run as a user would.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use outbox::{
    Context, Event, EventId, HandlerError, Names, PgSource, Registry, Relay, migrate, wait_delivered,
};
use outbox_dev::TestDatabase;
use sqlx::Row;

#[derive(Debug, serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {
    order: i64,
    total: String,
}

async fn database() -> TestDatabase {
    let database = TestDatabase::create().await.unwrap();
    let mut connection = database.pool().acquire().await.unwrap();
    migrate(&mut connection, &Names::default()).await.unwrap();
    drop(connection);
    database
}

fn example(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples/publish-from")
        .join(name)
}

fn lines(output: &Output) -> Vec<&str> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    std::str::from_utf8(&output.stdout).unwrap().lines().collect()
}

/// Delivers what the example published, and checks that a typed Rust handler takes it.
async fn assert_delivered(database: &TestDatabase, event_type: &str) {
    let rows = sqlx::query("SELECT id FROM outbox.outbox WHERE event_type = $1")
        .bind(event_type.to_owned())
        .fetch_all(database.pool())
        .await
        .unwrap();
    let ids: Vec<EventId> = rows.iter().map(|row| EventId::from_uuid(row.get(0))).collect();
    assert_eq!(ids.len(), 1);
    let source = PgSource::builder(database.connect_options())
        .start()
        .await
        .unwrap();
    let registry =
        Registry::new().on::<OrderPlaced>("check", |event: OrderPlaced, ctx: Context| async move {
            let key = ctx.envelope().ordering_key.as_ref().map(ToString::to_string);
            match (event.total.as_str(), key) {
                ("9.50", Some(key)) if key == format!("order-{}", event.order) => Ok(()),
                _ => Err(HandlerError::reject("not what was published")),
            }
        });
    let relay = Relay::builder(Arc::new(source), Arc::new(registry.build().unwrap()))
        .build()
        .unwrap()
        .spawn();
    let states = wait_delivered(database.pool(), &Names::default(), &ids, Duration::from_secs(60))
        .await
        .unwrap();
    relay.shutdown().await.unwrap();
    assert_eq!(states, [outbox::DeliveryState::Completed]);
}

#[tokio::test]
#[ignore = "needs psql; the gate runs it"]
async fn psql_publishes_in_its_own_transaction() {
    let database = database().await;

    let output = Command::new("psql")
        .arg(database.url())
        .arg("-f")
        .arg(example("publish.sql"))
        .output()
        .unwrap();

    assert_eq!(
        lines(&output),
        ["new: true", "new: true", "new: true", "new: false", "events: 2"]
    );
    assert_delivered(&database, "OrderPlaced").await;
}

#[tokio::test]
#[ignore = "needs a Python with psycopg, named by OUTBOX_TEST_PYTHON; the gate installs one"]
async fn python_publishes_in_its_own_transaction() {
    let database = database().await;
    let python = std::env::var("OUTBOX_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());

    let output = Command::new(python)
        .arg(example("publish.py"))
        .env("DATABASE_URL", database.url())
        .output()
        .unwrap();

    assert_eq!(
        lines(&output),
        [
            "new: True",
            "refused: event type is empty; it takes 1 to 200 bytes",
            "events: 1"
        ]
    );
    assert_delivered(&database, "OrderPlaced").await;
}
