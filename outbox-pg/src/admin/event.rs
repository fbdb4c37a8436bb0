//! Events as an operator sees them: without their payloads.

use std::fmt;

use jiff::Timestamp;
use outbox_core::{EventId, Headers, Position};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{Class, Status};
use crate::instant::from_value;

/// A stored event in one line. The payload is left out: it may be personal, and large.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventSummary {
    /// The event's id, unique within its tenant.
    pub id: EventId,
    /// Its number: publish order within a key.
    pub position: Position,
    /// What kind of fact it is.
    pub event_type: String,
    /// Whose it is; empty where there are no tenants.
    pub tenant_id: String,
    /// The key within which order is kept.
    pub ordering_key: Option<String>,
    /// What became of it.
    pub status: Status,
    /// Where it waits, if it is pending.
    pub class: Option<Class>,
    /// How many attempts failed.
    pub retry_count: u32,
    /// How often a lone claim of it was lost.
    pub lost_claims: u32,
    /// The last error.
    pub error: Option<String>,
    /// When it was published.
    pub created_at: Option<Timestamp>,
    /// When it is or was due, if by the clock.
    pub available_at: Option<Timestamp>,
    /// When it was completed or failed.
    pub processed_at: Option<Timestamp>,
    /// When an operator gave it up.
    pub discarded_at: Option<Timestamp>,
}

/// Everything about an event but its payload. `Debug` leaves out the headers' values.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventDetails {
    /// What lists show.
    pub summary: EventSummary,
    /// What kind of thing it is about.
    pub aggregate_type: Option<String>,
    /// Which thing it is about.
    pub aggregate_id: Option<String>,
    /// What travels beside the payload; empty if they cannot be read.
    pub headers: Headers,
    /// The handlers that are done with it.
    pub done_parts: Vec<String>,
    /// Until when a relay holds it, if one does.
    pub leased_until: Option<Timestamp>,
    /// What keeps it from running, such as `type paused` or `key parked`.
    pub blocked_by: Vec<String>,
}

impl fmt::Debug for EventDetails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventDetails")
            .field("summary", &self.summary)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("headers", &self.headers.keys())
            .field("done_parts", &self.done_parts)
            .field("leased_until", &self.leased_until)
            .field("blocked_by", &self.blocked_by)
            .finish()
    }
}

fn instant(row: &PgRow, column: usize) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(from_value(&row.try_get_raw(column)?))
}

impl EventSummary {
    pub(super) fn of(row: &PgRow) -> Result<Self, sqlx::Error> {
        let count = |column: usize| {
            row.try_get::<i32, _>(column)
                .map(|n| u32::try_from(n).unwrap_or(0))
        };
        let status = Status::parse(row.try_get(5)?);
        Ok(Self {
            id: EventId::from_uuid(row.try_get(0)?),
            position: Position(row.try_get(1)?),
            event_type: row.try_get(2)?,
            tenant_id: row.try_get(3)?,
            ordering_key: row.try_get(4)?,
            status,
            class: match status {
                Status::Pending => Some(Class::parse(row.try_get(6)?)),
                Status::Completed | Status::Failed => None,
            },
            retry_count: count(7)?,
            lost_claims: count(8)?,
            error: row.try_get(9)?,
            created_at: instant(row, 10)?,
            available_at: instant(row, 11)?,
            processed_at: instant(row, 12)?,
            discarded_at: instant(row, 13)?,
        })
    }
}

impl EventDetails {
    pub(super) fn of(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            summary: EventSummary::of(row)?,
            aggregate_type: row.try_get(14)?,
            aggregate_id: row.try_get(15)?,
            headers: serde_json::from_str(row.try_get(16)?).unwrap_or_default(),
            // A NULL among them makes the event undecodable, which is for its error to say.
            done_parts: row
                .try_get::<Option<Vec<Option<String>>>, _>(17)?
                .unwrap_or_default()
                .into_iter()
                .flatten()
                .collect(),
            leased_until: instant(row, 18)?,
            blocked_by: row.try_get::<Option<_>, _>(19)?.unwrap_or_default(),
        })
    }
}
