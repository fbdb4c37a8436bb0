//! Transactional handlers with the inbox, in batches, beside the same statements in plain SQL.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox::{Context, Event, HandlerError, Names, PgInbox, PgSource, Registry, Relay};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, PgConnection, Row};
use uuid::Uuid;

use crate::harness::{Lab, Report, Size, Target};

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: i64,
}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

const BILL: &str = "INSERT INTO bills (order_id) SELECT unnest($1::bigint[])";

async fn bill(events: Vec<(OrderPlaced, Context)>, tx: &mut PgConnection) -> Result<(), HandlerError> {
    let orders: Vec<i64> = events.iter().map(|(event, _)| event.order).collect();
    sqlx::query(BILL).bind(orders).execute(tx).await?;
    Ok(())
}

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    lab.execute("CREATE TABLE bills (order_id bigint PRIMARY KEY)")
        .await;
    let mut report = Report::new("inbox");
    report.fact("events", size.events);
    for _ in 0..size.rounds {
        report.add("plain SQL", &[("events/s", floor(&lab, size.events).await)]);
        report.add("batched handler", &[("events/s", relay(&lab, size.events).await)]);
    }
    report.compare("events/s", "batched handler", "plain SQL", Target::AtLeast(0.5));
    let rate = report.median("batched handler", "events/s");
    report.ratio(
        "events/s, which would do as well".into(),
        rate,
        Target::AtLeast(10_000.0),
    );
    report.finish();
}

async fn check(lab: &Lab, events: usize) {
    let events = i64::try_from(events).unwrap();
    // The key of the table refuses a second bill.
    assert_eq!(lab.number("SELECT count(*) FROM bills").await, events);
    let known = "SELECT count(*) FROM outbox.processed_events";
    assert_eq!(lab.number(known).await, events);
    let left = "SELECT count(*) FROM outbox.outbox WHERE status <> 'completed'";
    assert_eq!(lab.number(left).await, 0);
}

async fn relay(lab: &Lab, events: usize) -> f64 {
    lab.execute("TRUNCATE bills").await;
    lab.fill(events, 0).await;
    let options = lab.database.connect_options();
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .connect_with(options.clone())
        .await
        .unwrap();
    let inbox = PgInbox::new(pool.clone(), &Names::default());
    let handlers = Registry::new()
        .on::<OrderPlaced>("billing", inbox.batched(bill))
        .build()
        .unwrap();
    let source = Arc::new(PgSource::builder(options).start().await.unwrap());
    let began = Instant::now();
    let relay = Relay::builder(source, Arc::new(handlers))
        .build()
        .unwrap()
        .spawn();
    let left = "SELECT count(*) FROM outbox.outbox WHERE status <> 'completed' AND seq % 500 = 0";
    while lab.number(left).await > 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let left = "SELECT count(*) FROM outbox.outbox WHERE status <> 'completed'";
    while lab.number(left).await > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let rate = events as f64 / began.elapsed().as_secs_f64();
    relay.shutdown().await.unwrap();
    pool.close().await;
    check(lab, events).await;
    rate
}

/// Lock 500, note them in the inbox, bill those that were new, mark, commit.
async fn floor(lab: &Lab, events: usize) -> f64 {
    lab.execute("TRUNCATE bills").await;
    lab.fill(events, 0).await;
    let mut connection = lab.connect().await;
    connection
        .execute("SET plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    let began = Instant::now();
    let mut last = 0;
    while batch(&mut connection, &mut last).await > 0 {}
    let rate = events as f64 / began.elapsed().as_secs_f64();
    check(lab, events).await;
    rate
}

/// Goes on after the last number: nobody else publishes.
async fn batch(connection: &mut PgConnection, last: &mut i64) -> usize {
    let mut transaction = connection.begin().await.unwrap();
    let claim =
        "SELECT id, payload::text, seq FROM outbox.outbox WHERE status = 'pending' AND class = 'fresh'
        AND seq > $1 ORDER BY seq LIMIT 500 FOR UPDATE SKIP LOCKED";
    let rows = sqlx::query(claim)
        .bind(*last)
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    if let Some(row) = rows.last() {
        *last = row.get(2);
    }
    let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    let orders: Vec<i64> = rows
        .iter()
        .map(|row| serde_json::from_str::<OrderPlaced>(row.get(1)).unwrap().order)
        .collect();
    let note = "INSERT INTO outbox.processed_events (tenant_id, handler, event_id)
        SELECT '', 'billing', unnest($1::uuid[]) ON CONFLICT DO NOTHING RETURNING event_id";
    let new = sqlx::query(note)
        .bind(&ids)
        .fetch_all(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(new.len(), ids.len());
    sqlx::query(BILL)
        .bind(orders)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let mark = "UPDATE outbox.outbox SET status = 'completed', processed_at = now() WHERE id = ANY ($1)";
    sqlx::query(mark)
        .bind(&ids)
        .execute(&mut *transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    rows.len()
}
