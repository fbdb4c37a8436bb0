//! Shipping: sends what was paid for.

use outbox::{Context, Event, HandlerError, on_event};
use serde::{Deserialize, Serialize};

use crate::{Shop, billing::PaymentTaken};

pub(crate) const TABLES: &str =
    "CREATE TABLE IF NOT EXISTS parcels (order_id bigint PRIMARY KEY, item text NOT NULL)";

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = order, key = order)]
pub(crate) struct ParcelSent {
    pub(crate) order: i64,
    pub(crate) customer: String,
}

#[on_event(name = "shipping")]
async fn send(event: PaymentTaken, ctx: Context) -> Result<(), HandlerError> {
    let Shop { pool, publisher } = Shop::of(&ctx)?;

    let mut transaction = pool.begin().await?;
    let insert = sqlx::query("INSERT INTO parcels VALUES ($1, $2) ON CONFLICT DO NOTHING");
    let inserted = insert
        .bind(event.order)
        .bind(event.item)
        .execute(&mut *transaction)
        .await?;
    if inserted.rows_affected() == 0 {
        return Ok(());
    }
    let sent = ParcelSent {
        order: event.order,
        customer: event.customer,
    };
    publisher.publish(&mut transaction, &sent).await?;
    transaction.commit().await?;
    Ok(())
}
