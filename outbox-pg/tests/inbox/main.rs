//! One committed effect per handler and event, whatever happens to deliveries.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod batch;
mod concurrent;
mod faults;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_core::{
    Context, Delivery, Envelope, Event, EventId, EventType, Handler, HandlerError, NewEvent, PartName,
    Payload, Relay, RelayHandle, RetryPolicy, State, TenantId,
};
use outbox_dev::{Mode, Proxy};
use outbox_inproc::Registry;
use outbox_pg::{Names, PgInbox, PublishFollowUp, TxBatchHandler, TxHandler};
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgConnection, PgPool, Row};
use support::World;
use tokio::sync::Notify;

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: i64,
}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Billed {
    order: i64,
}

impl Event for Billed {
    const EVENT_TYPE: &'static str = "Billed";
}

async fn bill(event: OrderPlaced, tx: &mut PgConnection, ctx: Context) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO effects (handler, event_id, number) VALUES ('billing', $1, $2)")
        .bind(ctx.event_id().as_uuid())
        .bind(event.order)
        .execute(tx)
        .await?;
    Ok(())
}

async fn world() -> World {
    let world = World::new().await;
    world
        .run("CREATE TABLE effects (handler text, event_id uuid, number bigint, tenant text DEFAULT current_setting('app.current_tenant', true))")
        .await;
    world
}

fn inbox(world: &World) -> PgInbox {
    PgInbox::new(world.pool().clone(), &Names::default())
}

fn context(id: EventId, tenant: &str, order: i64) -> Context {
    context_within(Duration::from_secs(30), id, tenant, order)
}

fn context_within(limit: Duration, id: EventId, tenant: &str, order: i64) -> Context {
    let payload = Payload::encode(&OrderPlaced { order }).unwrap();
    let event_type = EventType::new("OrderPlaced").unwrap();
    let created_at = jiff::Timestamp::UNIX_EPOCH;
    let mut envelope = Envelope::new(id, event_type, payload, created_at);
    envelope.tenant_id = TenantId::new(tenant).unwrap();
    let deadline = tokio::time::Instant::now() + limit;
    let delivery = Delivery::new(Arc::new(envelope), deadline);
    let name = PartName::new("billing").unwrap();
    Context::new(Arc::new(delivery), Arc::new(State::default())).with_part(name)
}

async fn number(pool: &PgPool, sql: &str) -> i64 {
    let sql = sqlx::AssertSqlSafe(sql.to_owned());
    sqlx::query(sql).fetch_one(pool).await.unwrap().get(0)
}

async fn relay(world: &World, registry: Registry) -> RelayHandle {
    let source = Arc::new(world.source().start().await.unwrap());
    let fast = RetryPolicy::fixed(10.try_into().unwrap(), Duration::from_millis(10));
    Relay::builder(source, Arc::new(registry.build().unwrap()))
        .retry(fast)
        .build()
        .unwrap()
        .spawn()
}

async fn place(world: &World, orders: std::ops::Range<i64>) {
    let mut tx = world.pool().begin().await.unwrap();
    let orders: Vec<OrderPlaced> = orders.map(|order| OrderPlaced { order }).collect();
    world.publisher.publish_all(&mut tx, &orders).await.unwrap();
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn functions_closures_and_structs_are_transactional_handlers() {
    struct Mailer;
    impl TxHandler<OrderPlaced> for Mailer {
        async fn handle(
            &self,
            _: OrderPlaced,
            tx: &mut PgConnection,
            ctx: Context,
        ) -> Result<(), HandlerError> {
            sqlx::query("INSERT INTO effects (handler, event_id) VALUES ('mail', $1)")
                .bind(ctx.event_id().as_uuid())
                .execute(tx)
                .await?;
            Ok(())
        }
    }
    let world = world().await;
    let inbox = inbox(&world);
    let registry = Registry::new()
        .on::<OrderPlaced>("billing", inbox.transactional(bill))
        .on::<OrderPlaced>("mail", inbox.transactional(Mailer))
        .on::<OrderPlaced>(
            "stock",
            inbox.transactional(async |event: OrderPlaced, tx: &mut PgConnection, _: Context| {
                sqlx::query("INSERT INTO effects (handler, number) VALUES ('stock', $1)")
                    .bind(event.order)
                    .execute(tx)
                    .await?;
                Ok(())
            }),
        );
    let relay = relay(&world, registry).await;

    place(&world, 1..4).await;

    world.until("status = 'completed'", 3).await;
    relay.shutdown().await.unwrap();
    for handler in ["billing", "mail", "stock"] {
        let sql = format!("SELECT count(*) FROM effects WHERE handler = '{handler}'");
        assert_eq!(number(world.pool(), &sql).await, 3, "{handler}");
        let sql = format!("SELECT count(*) FROM outbox.processed_events WHERE handler = '{handler}'");
        assert_eq!(number(world.pool(), &sql).await, 3, "{handler}");
    }
}

#[tokio::test]
async fn a_second_delivery_has_no_second_effect() {
    let world = world().await;
    let handler = inbox(&world).transactional(bill);
    let id = EventId::new();

    for _ in 0..3 {
        handler
            .handle(OrderPlaced { order: 1 }, context(id, "", 1))
            .await
            .unwrap();
    }

    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 1);
}

#[tokio::test]
async fn a_failed_handler_leaves_neither_effect_nor_record() {
    let world = world().await;
    let handler =
        inbox(&world).transactional(async |event: OrderPlaced, tx: &mut PgConnection, ctx: Context| {
            bill(event, tx, ctx).await?;
            Err(HandlerError::reject("no"))
        });

    let end = handler
        .handle(OrderPlaced { order: 1 }, context(EventId::new(), "", 1))
        .await;

    assert!(matches!(end, Err(HandlerError::Reject(_))));
    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 0);
    assert_eq!(
        number(world.pool(), "SELECT count(*) FROM outbox.processed_events").await,
        0
    );
}

#[tokio::test]
async fn a_handler_that_passes_over_a_failed_statement_has_not_succeeded() {
    let world = world().await;
    let handler =
        inbox(&world).transactional(async |event: OrderPlaced, tx: &mut PgConnection, ctx: Context| {
            bill(event, tx, ctx).await?;
            // The transaction is aborted here, and COMMIT would quietly roll it back.
            let _ = sqlx::query("SELECT 1 / 0").execute(tx).await;
            Ok(())
        });

    let end = handler
        .handle(OrderPlaced { order: 1 }, context(EventId::new(), "", 1))
        .await;

    assert!(matches!(end, Err(HandlerError::Retry(_))), "{end:?}");
    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 0);
}

#[tokio::test]
async fn handlers_and_tenants_have_records_of_their_own() {
    let world = world().await;
    let inbox = inbox(&world);
    let id = EventId::new();
    let first = inbox.transactional(bill);
    let other = inbox
        .transactional(bill)
        .recorded_as(PartName::new("other").unwrap());

    for handler in [&first, &other] {
        for tenant in ["", "a", "b"] {
            let ctx = context(id, tenant, 1);
            handler.handle(OrderPlaced { order: 1 }, ctx).await.unwrap();
        }
    }

    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 6);
    for tenant in ["", "a", "b"] {
        let sql = format!("SELECT count(*) FROM effects WHERE tenant = '{tenant}'");
        assert_eq!(
            number(world.pool(), &sql).await,
            2,
            "the handler runs with its event's tenant set"
        );
    }
}

/// Bills, and counts how often it was asked to.
struct Counting(Arc<AtomicU32>);

impl TxHandler<OrderPlaced> for Counting {
    async fn handle(
        &self,
        event: OrderPlaced,
        tx: &mut PgConnection,
        ctx: Context,
    ) -> Result<(), HandlerError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        bill(event, tx, ctx).await
    }
}

impl TxBatchHandler<OrderPlaced> for Counting {
    async fn handle(
        &self,
        events: Vec<(OrderPlaced, Context)>,
        tx: &mut PgConnection,
    ) -> Result<(), HandlerError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        batch::bill_all(events, tx).await
    }
}

#[tokio::test]
async fn a_follow_up_carries_cause_correlation_and_tenant() {
    let world = world().await;
    let registry = Registry::new().on::<OrderPlaced>(
        "billing",
        inbox(&world).transactional(async |event: OrderPlaced, tx: &mut PgConnection, ctx: Context| {
            ctx.publish(tx, &Billed { order: event.order }).await?;
            Ok(())
        }),
    );
    let relay = relay(&world, registry).await;
    let first = NewEvent::of(&OrderPlaced { order: 1 })
        .unwrap()
        .with_tenant(TenantId::new("a").unwrap());
    let second = NewEvent::of(&OrderPlaced { order: 2 })
        .unwrap()
        .with_header("correlation-id", "cart 9");
    let first = world.publish(first).await;
    world.publish(second).await;

    world.until("status = 'completed'", 4).await;
    relay.shutdown().await.unwrap();
    let rows = sqlx::query(
        "SELECT tenant_id, headers ->> 'causation-id', headers ->> 'correlation-id' FROM outbox.outbox
         WHERE event_type = 'Billed' ORDER BY tenant_id DESC",
    )
    .fetch_all(world.pool())
    .await
    .unwrap();
    let texts = |row: usize| -> Vec<String> { (0..3).map(|column| rows[row].get(column)).collect() };
    assert_eq!(texts(0), ["a".to_owned(), first.to_string(), first.to_string()]);
    assert_eq!(texts(1)[2], "cart 9");
}

#[tokio::test]
async fn a_deduplicated_handler_runs_again_only_after_a_failure() {
    let world = world().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let handler = inbox(&world).deduplicated(move |_: OrderPlaced, _: Context| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match call {
                0 => Err(HandlerError::retry("not yet")),
                _ => Ok(()),
            }
        }
    });
    let id = EventId::new();

    let mut ends = Vec::new();
    for _ in 0..4 {
        ends.push(
            handler
                .handle(OrderPlaced { order: 1 }, context(id, "", 1))
                .await
                .is_ok(),
        );
    }

    assert_eq!(ends, [false, true, true, true]);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_inbox_forgets_what_is_past_retention() {
    let world = world().await;
    let inbox = inbox(&world);
    let handler = inbox.transactional(bill);
    let ids: BTreeSet<EventId> = (0..10).map(|_| EventId::new()).collect();
    for id in &ids {
        handler
            .handle(OrderPlaced { order: 1 }, context(*id, "", 1))
            .await
            .unwrap();
    }

    assert_eq!(inbox.prune(Duration::from_secs(3600)).await.unwrap(), 0);
    let name = PartName::new("billing").unwrap();
    let first = *ids.first().unwrap();
    assert!(inbox.knows(&name, &TenantId::default(), first).await.unwrap());
    assert_eq!(inbox.prune(Duration::ZERO).await.unwrap(), 10);
    assert!(!inbox.knows(&name, &TenantId::default(), first).await.unwrap());
}

#[tokio::test]
async fn a_transactional_handler_without_an_inbox_is_refused_before_any_event() {
    let registry = Registry::new().on::<OrderPlaced>("billing", outbox_pg::__private::FromState(bill));

    let refused = registry.build().unwrap_err().to_string();

    assert!(
        refused.contains("`OrderPlaced`") && refused.contains("Registry::state"),
        "{refused}"
    );
}
