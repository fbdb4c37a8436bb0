//! Publishing over SeaORM.

use outbox_core::{IntoNewEvent, PublishError, Published};
use sea_orm::{ConnectionTrait, DbBackend, Statement};

use crate::PgPublisher;

impl PgPublisher {
    /// Publishes one event over SeaORM, in whatever transaction `connection` has open.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), but an inherited tenant that no event can have is a [`PublishError::Store`].
    ///
    /// # Cancel safety
    /// As [`publish`](Self::publish).
    pub async fn publish_sea_orm(
        &self,
        connection: &impl ConnectionTrait,
        event: impl IntoNewEvent,
    ) -> Result<Published, PublishError> {
        let (sql, parameters) = self.statement(event)?.into_parts();
        let values = parameters.map(sea_orm::Value::from);
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, &*sql, values);
        let done = connection
            .execute_raw(statement)
            .await
            .map_err(|error| PublishError::Store(error.into()))?;
        Ok(Published::of(done.rows_affected(), 1))
    }
}
