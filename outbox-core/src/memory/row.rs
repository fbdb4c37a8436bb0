//! One stored event and what is known about it.

use tokio::time::Instant;

use crate::{ClaimToken, Envelope, EventId, EventType, OrderingKey, PartName, TenantId, Undecodable};

/// The key within which order is kept: never without its tenant.
pub(super) type Key = (TenantId, OrderingKey);

/// Where a stored event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Waiting for a delivery, or being delivered.
    Pending,
    /// Delivered.
    Completed,
    /// Given up: a dead letter.
    Failed,
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: EventId,
    pub(super) key: Option<Key>,
    pub(super) event_type: Option<EventType>,
    pub(super) bytes: u64,
    pub(super) content: Result<Envelope, Undecodable>,
    pub(super) status: Status,
    pub(super) discarded: bool,
    /// Failed attempts since the event was published or redriven.
    pub(super) failures: u32,
    pub(super) lost_claims: u32,
    /// Its last lease ended unsettled, so the next claim must hold nothing else.
    pub(super) alone: bool,
    /// Its time has not come: the row is in the waiting index.
    pub(super) waits_until: Option<Instant>,
    pub(super) done: Vec<PartName>,
    pub(super) error: Option<String>,
    pub(super) held_by: Option<ClaimToken>,
}

impl Row {
    pub(super) fn new(envelope: Envelope) -> Self {
        let key = envelope
            .ordering_key
            .clone()
            .map(|key| (envelope.tenant_id.clone(), key));
        Self {
            key,
            event_type: Some(envelope.event_type.clone()),
            bytes: envelope.payload.len() as u64,
            ..Self::with_content(envelope.id, Ok(envelope))
        }
    }

    pub(super) fn undecodable(id: EventId, why: Undecodable) -> Self {
        Self {
            event_type: why.event_type.clone(),
            ..Self::with_content(id, Err(why))
        }
    }

    fn with_content(id: EventId, content: Result<Envelope, Undecodable>) -> Self {
        Self {
            id,
            key: None,
            event_type: None,
            bytes: 0,
            content,
            status: Status::Pending,
            discarded: false,
            failures: 0,
            lost_claims: 0,
            alone: false,
            waits_until: None,
            done: Vec::new(),
            error: None,
            held_by: None,
        }
    }

    pub(super) fn tenant(&self) -> TenantId {
        self.content
            .as_ref()
            .map(|envelope| envelope.tenant_id.clone())
            .unwrap_or_default()
    }
}
