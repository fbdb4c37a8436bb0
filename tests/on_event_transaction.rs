//! Handlers that are found at link time and run in a transaction.

use std::sync::Arc;
use std::time::Duration;

use outbox::{
    Context, DeliveryState, Event, HandlerError, Names, NewEvent, PgInbox, PgPublisher, PgSource,
    PublishFollowUp, Registry, Relay, migrate, on_event, wait_delivered,
};
use outbox_dev::TestDatabase;
use sqlx::{PgConnection, Row};

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {
    order: i64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct Billed {
    order: i64,
}

#[on_event(name = "billing")]
async fn bill(event: OrderPlaced, tx: &mut PgConnection, ctx: Context) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO bills VALUES ($1, $2)")
        .bind(event.order)
        .bind(ctx.attempt().cast_signed())
        .execute(&mut *tx)
        .await?;
    ctx.publish(tx, &Billed { order: event.order }).await?;
    Ok(())
}

#[on_event]
async fn ship(event: Billed, tx: &mut PgConnection) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO parcels VALUES ($1)")
        .bind(event.order)
        .execute(tx)
        .await?;
    Ok(())
}

/// Called what the macro's own code is called: that this compiles is the test.
mod any_name {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, Event)]
    struct Named;

    #[on_event]
    async fn handle(_: Named, _: &mut PgConnection, _: Context) -> Result<(), HandlerError> {
        Ok(())
    }

    #[on_event]
    async fn event(_: Named, _: &mut PgConnection, _: Context) -> Result<(), HandlerError> {
        Ok(())
    }

    #[on_event]
    async fn tx(_: Named, _: &mut PgConnection) -> Result<(), HandlerError> {
        Ok(())
    }

    #[on_event]
    async fn ctx(_: Named, _: &mut PgConnection, _: Context) -> Result<(), HandlerError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_function_that_takes_a_transaction_gets_one() {
    let database = TestDatabase::create().await.unwrap();
    let pool = database.pool();
    let mut connection = pool.acquire().await.unwrap();
    migrate(&mut connection, &Names::default()).await.unwrap();
    sqlx::raw_sql("CREATE TABLE bills (id bigint, attempt integer); CREATE TABLE parcels (id bigint)")
        .execute(&mut *connection)
        .await
        .unwrap();
    let event = NewEvent::of(&OrderPlaced { order: 7 }).unwrap();
    let ids = [event.id];
    let inbox = PgInbox::new(pool.clone(), &Names::default());
    let registry = Registry::new().state(inbox).discover().build().unwrap();
    let source = PgSource::builder(database.connect_options())
        .start()
        .await
        .unwrap();
    let relay = Relay::builder(Arc::new(source), Arc::new(registry))
        .build()
        .unwrap()
        .spawn();

    PgPublisher::new(&Names::default())
        .publish(&mut connection, event)
        .await
        .unwrap();
    let states = wait_delivered(pool, &Names::default(), &ids, Duration::from_secs(60))
        .await
        .unwrap();
    assert_eq!(states, [DeliveryState::Completed]);
    while sqlx::query("SELECT FROM parcels WHERE id = 7")
        .fetch_optional(pool)
        .await
        .unwrap()
        .is_none()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    relay.shutdown().await.unwrap();
    let records = sqlx::query("SELECT handler FROM outbox.processed_events ORDER BY handler")
        .fetch_all(pool)
        .await
        .unwrap();
    let names: Vec<String> = records.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, ["billing", "on_event_transaction::ship"]);
}
