//! Looking: nothing here changes anything.

use outbox_core::{EventId, SourceError, TenantId};
use sqlx::Row;

use super::{Class, EventDetails, EventSummary, Gauges, ListFilter, OutboxStatus, PgAdmin};
use crate::error::source_error;

impl PgAdmin {
    /// What stands where. Looks at every pending and failed event, up to a million of each class.
    ///
    /// # Errors
    /// [`SourceError`] when the database cannot be reached or refuses. So for every method here.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn status(&self) -> Result<OutboxStatus, SourceError> {
        let failed = |error| source_error("status", error);
        let query = self.statements.status.query();
        let row = self.fetch_one(query).await.map_err(failed)?;
        let text: &str = row.try_get(0).map_err(failed)?;
        serde_json::from_str(text).map_err(|error| SourceError::misconfigured("status", error))
    }

    /// The figures of metrics, for every few seconds. Counting stops at `cap`.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn gauges(&self, cap: u32) -> Result<Gauges, SourceError> {
        let failed = |error| source_error("gauges", error);
        let query = self.statements.gauges.query().bind(i64::from(cap));
        let row = self.fetch_one(query).await.map_err(failed)?;
        let count = |column: usize| {
            row.try_get::<i64, _>(column)
                .map(|n| u64::try_from(n).unwrap_or(0))
                .map_err(failed)
        };
        Ok(Gauges {
            pending: count(0)?,
            oldest_seconds: row.try_get(1).map_err(failed)?,
            failed: count(2)?,
            in_flight: count(3)?,
        })
    }

    /// A page of events.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn list(&self, filter: &ListFilter) -> Result<Vec<EventSummary>, SourceError> {
        let query = self
            .statements
            .list
            .query()
            .bind(filter.status.as_str())
            .bind(filter.event_type.as_ref().map(|name| name.as_str().to_owned()))
            .bind(filter.tenant_id.as_ref().map(|id| id.as_str().to_owned()))
            .bind(filter.ordering_key.as_ref().map(|key| key.as_str().to_owned()))
            .bind(filter.error.clone())
            .bind(filter.class.map(Class::as_str))
            .bind(filter.after)
            .bind(i64::from(filter.limit));
        let failed = |error| source_error("list", error);
        let rows = self.fetch_all(query).await.map_err(failed)?;
        rows.iter()
            .map(EventSummary::of)
            .collect::<Result<_, _>>()
            .map_err(failed)
    }

    /// The events of these ids that there are, in publish order.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn list_ids(&self, ids: &[EventId]) -> Result<Vec<EventSummary>, SourceError> {
        let ids: Vec<_> = ids.iter().map(EventId::as_uuid).collect();
        let failed = |error| source_error("list", error);
        let query = self.statements.list_by_id.query().bind(ids);
        let rows = self.fetch_all(query).await.map_err(failed)?;
        rows.iter()
            .map(EventSummary::of)
            .collect::<Result<_, _>>()
            .map_err(failed)
    }

    /// Everything about an event but its payload; one for each tenant that has the id.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn show(&self, id: EventId) -> Result<Vec<EventDetails>, SourceError> {
        let failed = |error| source_error("show", error);
        let query = self.statements.show.query().bind(id.as_uuid());
        let rows = self.fetch_all(query).await.map_err(failed)?;
        rows.iter()
            .map(EventDetails::of)
            .collect::<Result<_, _>>()
            .map_err(failed)
    }

    /// The payload of an event, which may be personal data.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn payload(&self, id: EventId, tenant_id: &TenantId) -> Result<Option<String>, SourceError> {
        let failed = |error| source_error("show", error);
        let query = self
            .statements
            .payload
            .query()
            .bind(id.as_uuid())
            .bind(tenant_id.as_str().to_owned());
        let rows = self.fetch_all(query).await.map_err(failed)?;
        let payload = rows.first().map(|row| row.try_get(0));
        payload.transpose().map_err(failed)
    }
}
