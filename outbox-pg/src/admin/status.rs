//! What stands where.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What stands where, for people. Counts stop at [`cap`](Self::cap) for each class, and lists at 100.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct OutboxStatus {
    /// Pending events that have met no obstacle yet.
    pub fresh: u64,
    /// Pending events that are not due yet.
    pub scheduled: u64,
    /// Pending events that were tried, released, redriven or lost.
    pub waiting: u64,
    /// Pending events behind another one of their key, or whose key is blocked.
    pub held: u64,
    /// Pending events whose type is paused or has no room.
    pub barred: u64,
    /// How many of the pending ones have failed before.
    pub retrying: u64,
    /// Dead letters that wait for an operator.
    pub failed: u64,
    /// Dead letters that were given up.
    pub discarded: u64,
    /// For how long the event that could run now and has been due the longest has been due: since it was published, or since
    /// the instant of its schedule, next attempt or redrive. 0 if none could run.
    pub oldest_seconds: f64,
    /// Events in the hands of relays.
    pub in_flight: u64,
    /// Claims that relays hold.
    pub leases: u64,
    /// Claims whose time is over and that no relay has taken back yet.
    pub expired_leases: u64,
    /// How many types and keys are blocked.
    pub blocked: u64,
    /// What is blocked, the oldest first.
    pub blocks: Vec<Block>,
    /// Pending and failed events by type, the most first.
    pub types: Vec<TypeCount>,
    /// About how many rows the table has, settled ones included.
    pub rows_estimate: u64,
    /// Where counting stopped.
    pub cap: u64,
}

impl OutboxStatus {
    /// All pending events.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.fresh + self.scheduled + self.waiting + self.held + self.barred
    }
}

/// An event type or ordering key that may not run.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct Block {
    /// `type` or `key`.
    pub scope: String,
    /// Whose key it is; empty for types.
    pub tenant_id: String,
    /// The type or the key.
    pub name: String,
    /// `paused`, `stopped` or `parked`.
    pub reason: String,
    /// The failed event that stopped or parked the key: the first, if there are several.
    pub event_id: Option<Uuid>,
    /// How many failed events have to be redriven or discarded before the key goes on. 0 for what is paused.
    pub events: u64,
    /// For how long.
    pub for_seconds: f64,
}

/// Events of one type.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct TypeCount {
    /// The type.
    pub event_type: String,
    /// How many are pending.
    pub pending: u64,
    /// How many failed and were not discarded.
    pub failed: u64,
}

/// The figures of metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Gauges {
    /// Pending events.
    pub pending: u64,
    /// As [`OutboxStatus::oldest_seconds`].
    pub oldest_seconds: f64,
    /// Dead letters that were not discarded.
    pub failed: u64,
    /// Events in the hands of relays.
    pub in_flight: u64,
}
