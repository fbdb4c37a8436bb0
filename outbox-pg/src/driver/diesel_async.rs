//! Publishing over diesel-async.

use diesel::sql_types::{Nullable, Text};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use outbox_core::{IntoNewEvent, PublishError, Published};

use crate::PgPublisher;

type MaybeText = Nullable<Text>;

impl PgPublisher {
    /// Publishes one event over diesel-async, in whatever transaction `connection` has open.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), but an inherited tenant that no event can have is a [`PublishError::Store`].
    ///
    /// # Cancel safety
    /// As [`publish`](Self::publish).
    pub async fn publish_diesel_async(
        &self,
        connection: &mut AsyncPgConnection,
        event: impl IntoNewEvent,
    ) -> Result<Published, PublishError> {
        let (
            sql,
            [
                id,
                event_type,
                aggregate_type,
                aggregate_id,
                key,
                tenant,
                payload,
                headers,
                at,
                after,
            ],
        ) = self.statement(event)?.into_parts();
        let rows = diesel::sql_query(&*sql)
            .bind::<MaybeText, _>(id)
            .bind::<MaybeText, _>(event_type)
            .bind::<MaybeText, _>(aggregate_type)
            .bind::<MaybeText, _>(aggregate_id)
            .bind::<MaybeText, _>(key)
            .bind::<MaybeText, _>(tenant)
            .bind::<MaybeText, _>(payload)
            .bind::<MaybeText, _>(headers)
            .bind::<MaybeText, _>(at)
            .bind::<MaybeText, _>(after)
            .execute(connection)
            .await
            .map_err(|error| PublishError::Store(error.into()))?;
        Ok(Published::of(rows as u64, 1))
    }
}
