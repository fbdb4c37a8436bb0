//! Billing: takes the money for an order, and tells how that went.

use outbox::{Context, Event, HandlerError, on_event};
use serde::{Deserialize, Serialize};

use crate::{Shop, orders::OrderPlaced};

pub(crate) const TABLES: &str = "CREATE TABLE IF NOT EXISTS payments (order_id bigint PRIMARY KEY, cents bigint NOT NULL, taken boolean NOT NULL)";

/// Above this, the bank says no.
const CREDIT_CENTS: i64 = 100_000;

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = order, key = order)]
pub(crate) struct PaymentTaken {
    pub(crate) order: i64,
    pub(crate) customer: String,
    pub(crate) item: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = order, key = order)]
pub(crate) struct PaymentDeclined {
    pub(crate) order: i64,
    pub(crate) customer: String,
}

/// A handler that changes its data and publishes, in one transaction.
#[on_event(name = "billing")]
async fn charge(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
    let Shop { pool, publisher } = Shop::of(&ctx)?;
    let taken = event.cents <= CREDIT_CENTS;

    let mut transaction = pool.begin().await?;
    let insert = sqlx::query("INSERT INTO payments VALUES ($1, $2, $3) ON CONFLICT DO NOTHING");
    let inserted = insert
        .bind(event.order)
        .bind(event.cents)
        .bind(taken)
        .execute(&mut *transaction)
        .await?;
    if inserted.rows_affected() == 0 {
        // Seen before: charged, and told, in the transaction that wrote the row.
        return Ok(());
    }
    let OrderPlaced {
        order,
        customer,
        item,
        ..
    } = event;
    if taken {
        publisher
            .publish(
                &mut transaction,
                &PaymentTaken {
                    order,
                    customer,
                    item,
                },
            )
            .await?;
    } else {
        publisher
            .publish(&mut transaction, &PaymentDeclined { order, customer })
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}
