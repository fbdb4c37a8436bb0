//! Mail: keeps customers informed, over a mail server that refuses every first try.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use outbox::{Context, HandlerError, on_event};

use crate::{Shop, billing::PaymentDeclined, orders::OrderPlaced, shipping::ParcelSent, unavailable};

/// The event's id makes a mail unique: sent once, however often its event is handled.
pub(crate) const TABLES: &str = "CREATE TABLE IF NOT EXISTS mails (
    event_id uuid PRIMARY KEY,
    number   bigint GENERATED ALWAYS AS IDENTITY,
    customer text NOT NULL,
    subject  text NOT NULL
)";

pub(crate) fn routes() -> Router<Shop> {
    Router::new().route("/mails/{customer}", get(list))
}

async fn list(
    State(shop): State<Shop>,
    Path(customer): Path<String>,
) -> Result<Json<Vec<String>>, StatusCode> {
    let select =
        sqlx::query_scalar("SELECT subject FROM mails WHERE customer = $1 ORDER BY number").bind(customer);
    select.fetch_all(&shop.pool).await.map(Json).map_err(unavailable)
}

#[on_event(name = "mail")]
async fn thank(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
    send(
        &ctx,
        &event.customer,
        format!("thank you for order {}", event.order),
    )
    .await
}

#[on_event(name = "mail")]
async fn regret(event: PaymentDeclined, ctx: Context) -> Result<(), HandlerError> {
    send(
        &ctx,
        &event.customer,
        format!("order {} could not be charged", event.order),
    )
    .await
}

#[on_event(name = "mail")]
async fn announce(event: ParcelSent, ctx: Context) -> Result<(), HandlerError> {
    send(
        &ctx,
        &event.customer,
        format!("order {} is on its way", event.order),
    )
    .await
}

async fn send(ctx: &Context, customer: &str, subject: String) -> Result<(), HandlerError> {
    if ctx.attempt() == 1 {
        return Err(HandlerError::retry("the mail server is busy"));
    }
    let insert = sqlx::query(
        "INSERT INTO mails (event_id, customer, subject) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
    );
    let insert = insert.bind(ctx.event_id().as_uuid()).bind(customer).bind(subject);
    insert.execute(&Shop::of(ctx)?.pool).await?;
    Ok(())
}
