//! Orders: takes them, tells the others, and follows what becomes of them.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use outbox::{Context, Event, HandlerError, on_event};
use serde::{Deserialize, Serialize};

use crate::{
    Shop,
    billing::{PaymentDeclined, PaymentTaken},
    shipping::ParcelSent,
    unavailable,
};

pub(crate) const TABLES: &str = "CREATE TABLE IF NOT EXISTS orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    item     text NOT NULL,
    cents    bigint NOT NULL,
    state    text NOT NULL DEFAULT 'placed'
)";

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = order, key = order)]
pub(crate) struct OrderPlaced {
    pub(crate) order: i64,
    pub(crate) customer: String,
    pub(crate) item: String,
    pub(crate) cents: i64,
}

#[derive(Deserialize)]
struct NewOrder {
    customer: String,
    item: String,
    cents: i64,
}

#[derive(Serialize, Deserialize)]
struct Order {
    id: i64,
    customer: String,
    item: String,
    cents: i64,
    state: String,
}

pub(crate) fn routes() -> Router<Shop> {
    Router::new()
        .route("/orders", post(place))
        .route("/orders/{id}", get(show))
}

/// The order and the event about it: both or neither.
async fn place(
    State(shop): State<Shop>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), StatusCode> {
    let mut transaction = shop.pool.begin().await.map_err(unavailable)?;
    let insert = "INSERT INTO orders (customer, item, cents) VALUES ($1, $2, $3) RETURNING to_json(orders)";
    let insert = sqlx::query_scalar(insert)
        .bind(new.customer)
        .bind(new.item)
        .bind(new.cents);
    let sqlx::types::Json::<Order>(order) = insert.fetch_one(&mut *transaction).await.map_err(unavailable)?;
    let event = OrderPlaced {
        order: order.id,
        customer: order.customer.clone(),
        item: order.item.clone(),
        cents: order.cents,
    };
    shop.publisher
        .publish(&mut transaction, &event)
        .await
        .map_err(unavailable)?;
    transaction.commit().await.map_err(unavailable)?;
    Ok((StatusCode::CREATED, Json(order)))
}

async fn show(State(shop): State<Shop>, Path(id): Path<i64>) -> Result<Json<Order>, StatusCode> {
    let select = sqlx::query_scalar("SELECT to_json(orders) FROM orders WHERE id = $1").bind(id);
    let order: Option<sqlx::types::Json<Order>> =
        select.fetch_optional(&shop.pool).await.map_err(unavailable)?;
    order.map(|row| Json(row.0)).ok_or(StatusCode::NOT_FOUND)
}

#[on_event(name = "orders")]
async fn paid(event: PaymentTaken, ctx: Context) -> Result<(), HandlerError> {
    advance(&ctx, event.order, "placed", "paid").await
}

#[on_event(name = "orders")]
async fn cancelled(event: PaymentDeclined, ctx: Context) -> Result<(), HandlerError> {
    advance(&ctx, event.order, "placed", "cancelled").await
}

#[on_event(name = "orders")]
async fn shipped(event: ParcelSent, ctx: Context) -> Result<(), HandlerError> {
    advance(&ctx, event.order, "paid", "shipped").await
}

/// Handling an event again finds the order advanced already, and changes nothing.
async fn advance(ctx: &Context, order: i64, from: &str, to: &str) -> Result<(), HandlerError> {
    let update = sqlx::query("UPDATE orders SET state = $3 WHERE id = $1 AND state = $2");
    update
        .bind(order)
        .bind(from)
        .bind(to)
        .execute(&Shop::of(ctx)?.pool)
        .await?;
    Ok(())
}
