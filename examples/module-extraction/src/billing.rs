//! The module that moves. Nothing in this file knows where its events come from.

use outbox::{Context, HandlerError, PgInbox, Registry};
use sqlx::PgConnection;

use crate::orders::OrderPlaced;

/// What the module keeps: its own tables, in whatever database it is given.
pub const TABLES: &str = "CREATE TABLE IF NOT EXISTS bills (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id bigint NOT NULL,
    customer text NOT NULL,
    number   bigint NOT NULL,
    cents    bigint NOT NULL
)";

/// Writes a bill for an order. The inbox sees to it that there is one bill, however often the event comes.
///
/// # Errors
/// What the database says; the event is then tried again.
///
/// # Cancel safety
/// The bill is written by the transaction, or not at all.
pub async fn bill(
    order: OrderPlaced,
    transaction: &mut PgConnection,
    _: Context,
) -> Result<(), HandlerError> {
    sqlx::query("INSERT INTO bills (order_id, customer, number, cents) VALUES ($1, $2, $3, $4)")
        .bind(order.order)
        .bind(order.customer)
        .bind(order.number)
        .bind(order.cents)
        .execute(transaction)
        .await?;
    Ok(())
}

/// Registers the module's handlers.
pub fn register(registry: Registry, inbox: &PgInbox) -> Registry {
    registry.on::<OrderPlaced>("billing", inbox.transactional(bill))
}
