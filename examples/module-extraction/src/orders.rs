//! The module that stays: takes orders, and tells the others.

use outbox::{Event, PgPublisher};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// What the module keeps.
pub const TABLES: &str = "CREATE TABLE IF NOT EXISTS orders (
    id       bigint PRIMARY KEY,
    customer text NOT NULL,
    number   bigint NOT NULL,
    cents    bigint NOT NULL
)";

/// An order was placed. The events of one customer are handled in order.
#[derive(Debug, Clone, Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = order, key = customer)]
pub struct OrderPlaced {
    /// Which order.
    pub order: i64,
    /// Who ordered.
    pub customer: String,
    /// Their how-manieth order it is.
    pub number: i64,
    /// What it costs.
    pub cents: i64,
}

/// Places orders: they and the events about them are committed together.
///
/// # Errors
/// What the database says.
///
/// # Cancel safety
/// Either all orders are placed or none.
pub async fn place(
    pool: &PgPool,
    orders: &[OrderPlaced],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let publisher = PgPublisher::new(&outbox::Names::default());
    let mut transaction = pool.begin().await?;
    for order in orders {
        sqlx::query("INSERT INTO orders VALUES ($1, $2, $3, $4)")
            .bind(order.order)
            .bind(&order.customer)
            .bind(order.number)
            .bind(order.cents)
            .execute(&mut *transaction)
            .await?;
        publisher.publish(&mut transaction, order).await?;
    }
    transaction.commit().await?;
    Ok(())
}
