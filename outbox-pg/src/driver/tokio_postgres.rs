//! Publishing over tokio-postgres.

use outbox_core::{IntoNewEvent, PublishError, Published};
use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};

use crate::PgPublisher;

impl PgPublisher {
    /// Publishes one event over tokio-postgres, in whatever transaction `client` has open.
    ///
    /// One round trip and no prepared statement, so it works through poolers in transaction mode.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), but an inherited tenant that no event can have is a [`PublishError::Store`].
    ///
    /// # Cancel safety
    /// As [`publish`](Self::publish).
    pub async fn publish_tokio_postgres<C: GenericClient + Sync>(
        &self,
        client: &C,
        event: impl IntoNewEvent,
    ) -> Result<Published, PublishError> {
        let statement = self.statement(event)?;
        let parameters: Vec<(&(dyn ToSql + Sync), Type)> = statement
            .parameters()
            .iter()
            .map(|text| (text as &(dyn ToSql + Sync), Type::TEXT))
            .collect();
        let rows = client
            .execute_typed(statement.sql(), &parameters)
            .await
            .map_err(|error| PublishError::Store(error.into()))?;
        Ok(Published::of(rows, 1))
    }
}
