//! Changing by hand, under the lock of claims, and recorded.

use outbox_core::{EventId, EventType, OrderingKey, SourceError, TenantId};
use sqlx::Row;

use super::{Action, Begun, FailedFilter, PgAdmin};
use crate::error::source_error;

/// What a redrive or discard would change.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Preview {
    /// How many events.
    pub events: u64,
    /// How many of each type, the most first, with some ids.
    pub types: Vec<(String, u64, Vec<EventId>)>,
}

/// What resuming changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resumed {
    /// Whether it was paused or stopped.
    pub was_blocked: bool,
    /// The failed event behind which the key is still parked, the first if there are several: redrive or discard that one.
    pub parked_by: Option<EventId>,
}

impl PgAdmin {
    /// What [`redrive`](Self::redrive) would change, with up to `samples` ids of each type. Changes nothing.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn preview_redrive(&self, filter: &FailedFilter, samples: u16) -> Result<Preview, SourceError> {
        self.preview(filter, true, samples).await
    }

    /// What [`discard`](Self::discard) would change, with up to `samples` ids of each type. Changes nothing.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn preview_discard(&self, filter: &FailedFilter, samples: u16) -> Result<Preview, SourceError> {
        self.preview(filter, false, samples).await
    }

    /// Makes failed events pending again: each is due at once with a new cycle of attempts, and handlers that are done
    /// with it stay done. An event with a key goes before those that came after it and still wait, and frees its key
    /// if that was stopped or parked because of it and of no other.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// An action without steps may be left behind in the audit table.
    pub async fn redrive(&self, filter: &FailedFilter, reason: &str) -> Result<Action, SourceError> {
        self.begin("redrive", filter, reason).await
    }

    /// Gives failed events up: they stay failed, are pruned in time, and free a key that waited for them.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// An action without steps may be left behind in the audit table.
    pub async fn discard(&self, filter: &FailedFilter, reason: &str) -> Result<Action, SourceError> {
        self.begin("discard", filter, reason).await
    }

    /// What the action of that number was begun as; none if there is no such action.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn begun(&self, number: i64) -> Result<Option<Begun>, SourceError> {
        let failed = |error| source_error("read action", error);
        let query = self.statements.begun.query().bind(number);
        let rows = self.fetch_all(query).await.map_err(failed)?;
        let begun = rows.first().map(|row| {
            Ok(Begun {
                verb: row.try_get(0)?,
                filter: row.try_get(1)?,
                reason: row.try_get(2)?,
                actor: row.try_get(3)?,
            })
        });
        begun.transpose().map_err(failed)
    }

    /// Goes on with an action that was interrupted, as it was begun: see [`begun`](Self::begun). One that is finished, or
    /// no action at all, shows at its first step.
    pub fn action(&self, number: i64) -> Action {
        Action::new(self.clone(), number)
    }

    /// Pauses an event type for all tenants. Deliveries under way are finished; no claim after this takes more, and relays
    /// hand back what they have not begun. Returns whether it was running.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// It is paused or not.
    pub async fn pause_type(&self, event_type: &EventType, reason: &str) -> Result<bool, SourceError> {
        self.pause(("type", "", event_type.as_str()), reason).await
    }

    /// Lets a paused event type run again. Returns whether it was paused.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// It is paused or not.
    pub async fn resume_type(&self, event_type: &EventType, reason: &str) -> Result<bool, SourceError> {
        let resumed = self.resume(("type", "", event_type.as_str()), reason).await?;
        Ok(resumed.was_blocked)
    }

    /// Pauses an ordering key. Deliveries under way are finished; no claim after this takes more, and relays hand back what
    /// they have not begun. Returns whether it was running.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// It is paused or not.
    pub async fn pause_key(
        &self,
        tenant_id: &TenantId,
        key: &OrderingKey,
        reason: &str,
    ) -> Result<bool, SourceError> {
        self.pause(("key", tenant_id.as_str(), key.as_str()), reason)
            .await
    }

    /// Lets a key run again that was paused, or stopped by a failed event. A parked one needs its event to be redriven
    /// or discarded.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    ///
    /// # Cancel safety
    /// It is resumed or not.
    pub async fn resume_key(
        &self,
        tenant_id: &TenantId,
        key: &OrderingKey,
        reason: &str,
    ) -> Result<Resumed, SourceError> {
        self.resume(("key", tenant_id.as_str(), key.as_str()), reason)
            .await
    }

    async fn preview(
        &self,
        filter: &FailedFilter,
        discarded: bool,
        samples: u16,
    ) -> Result<Preview, SourceError> {
        let failed = |error| source_error("preview", error);
        let query = self
            .statements
            .preview
            .query()
            .bind(filter.to_json("preview")?)
            .bind(discarded)
            .bind(i32::from(samples));
        let rows = self.fetch_all(query).await.map_err(failed)?;
        let types = rows
            .iter()
            .map(|row| {
                let ids: Vec<uuid::Uuid> = row.try_get(2)?;
                let count = u64::try_from(row.try_get::<i64, _>(1)?).unwrap_or(0);
                Ok((
                    row.try_get(0)?,
                    count,
                    ids.into_iter().map(EventId::from_uuid).collect(),
                ))
            })
            .collect::<Result<Vec<_>, sqlx::Error>>()
            .map_err(failed)?;
        Ok(Preview {
            events: types.iter().map(|(_, count, _)| count).sum(),
            types,
        })
    }

    async fn begin(&self, action: &str, filter: &FailedFilter, reason: &str) -> Result<Action, SourceError> {
        let failed = |error| source_error("begin action", error);
        let query = self
            .statements
            .begin
            .query()
            .bind(action.to_owned())
            .bind(filter.to_json("begin action")?)
            .bind(reason.to_owned())
            .bind(self.actor.clone());
        let row = self.fetch_one(query).await.map_err(failed)?;
        Ok(Action::new(self.clone(), row.try_get(0).map_err(failed)?))
    }

    async fn pause(&self, what: (&str, &str, &str), reason: &str) -> Result<bool, SourceError> {
        let failed = |error| source_error("pause", error);
        let query = self.statements.pause.query();
        let query = query
            .bind(what.0.to_owned())
            .bind(what.1.to_owned())
            .bind(what.2.to_owned());
        let query = query.bind(reason.to_owned()).bind(self.actor.clone());
        let row = self.fetch_one(query).await.map_err(failed)?;
        row.try_get(0).map_err(failed)
    }

    async fn resume(&self, what: (&str, &str, &str), reason: &str) -> Result<Resumed, SourceError> {
        let failed = |error| source_error("resume", error);
        let query = self.statements.resume.query();
        let query = query
            .bind(what.0.to_owned())
            .bind(what.1.to_owned())
            .bind(what.2.to_owned());
        let query = query.bind(reason.to_owned()).bind(self.actor.clone());
        let row = self.fetch_one(query).await.map_err(failed)?;
        let parked_by: Option<uuid::Uuid> = row.try_get(1).map_err(failed)?;
        Ok(Resumed {
            was_blocked: row.try_get::<i32, _>(0).map_err(failed)? > 0,
            parked_by: parked_by.map(EventId::from_uuid),
        })
    }
}
