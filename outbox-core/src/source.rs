//! Where events wait.

use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::{ClaimToken, Envelope, EventId, EventType, KeyPolicy, PartName, Position, SourceError};

/// What a relay has room for.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// The most events to claim.
    pub max_events: NonZeroU32,
    /// The most bytes of payload to claim; one event may exceed it alone, or it would never be delivered.
    pub max_bytes: u64,
    /// How long the claim is held unless it is extended.
    pub lease: Duration,
    /// Event types for which there is no room now.
    pub excluded_types: Vec<EventType>,
}

impl ClaimRequest {
    /// A request for up to `max_events`, held for `lease`, any type, 64 MiB at most.
    #[must_use]
    pub fn new(max_events: NonZeroU32, lease: Duration) -> Self {
        Self {
            max_events,
            max_bytes: 64 << 20,
            lease,
            excluded_types: Vec::new(),
        }
    }

    /// Limits the bytes of payload.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Leaves out event types.
    #[must_use]
    pub fn with_excluded_types(mut self, excluded_types: Vec<EventType>) -> Self {
        self.excluded_types = excluded_types;
        self
    }
}

/// An event in the hands of a relay.
#[derive(Debug)]
#[non_exhaustive]
pub struct Claimed {
    /// Proof of the claim. Several events of one call may share it.
    pub token: ClaimToken,
    /// Where the event stands in its source.
    pub position: Position,
    /// The event's id, known even if the rest cannot be decoded.
    pub id: EventId,
    /// Which try this is, from 1. Failed tries count; releases and lost claims do not.
    pub attempt: u32,
    /// How often a lone claim of this event was lost, which means: how often it may have killed its relay.
    pub lost_claims: u32,
    /// The parts that earlier deliveries have done.
    pub done: Vec<PartName>,
    /// Fires when the claim is lost before it was settled. Each event has one of its own, because the relay fires it too,
    /// when it calls the delivery off.
    pub lost: CancellationToken,
    /// The event, or why it cannot be decoded.
    pub envelope: Result<Envelope, Undecodable>,
}

impl Claimed {
    /// A first claim of an event, nothing done, nothing lost.
    #[must_use]
    pub fn new(token: ClaimToken, position: Position, envelope: Envelope) -> Self {
        Self {
            token,
            position,
            id: envelope.id,
            attempt: 1,
            lost_claims: 0,
            done: Vec::new(),
            lost: CancellationToken::new(),
            envelope: Ok(envelope),
        }
    }

    /// A first claim of an event that cannot be decoded.
    #[must_use]
    pub fn undecodable(token: ClaimToken, position: Position, id: EventId, why: Undecodable) -> Self {
        Self {
            token,
            position,
            id,
            attempt: 1,
            lost_claims: 0,
            done: Vec::new(),
            lost: CancellationToken::new(),
            envelope: Err(why),
        }
    }
}

/// Why a stored event could not be read back. Harms that event only.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event cannot be decoded: {reason}")]
pub struct Undecodable {
    /// What is wrong, without the payload.
    pub reason: String,
    /// The event type, if that much could be read.
    pub event_type: Option<EventType>,
}

/// How a delivery ended, for the source to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was done. Final.
    Completed,
    /// Try again later; counts as a failed attempt.
    Retry {
        /// How long to wait, counted by the source's clock.
        after: Duration,
        /// What went wrong, bounded.
        error: String,
        /// All parts done so far.
        done: Vec<PartName>,
    },
    /// Given up: a dead letter, until an operator acts. Counts as a failed attempt.
    Failed {
        /// What went wrong, bounded.
        error: String,
        /// All parts done so far.
        done: Vec<PartName>,
        /// What becomes of later events with the same ordering key.
        key: KeyPolicy,
    },
    /// Handed back untried: no attempt is counted.
    Released {
        /// How long to wait; zero makes the event due at once.
        after: Duration,
        /// All parts done so far.
        done: Vec<PartName>,
    },
}

impl Outcome {
    /// Gives an event up. Refusals among its parts are forgotten: once it is redriven, those parts may try again.
    pub(crate) fn failed(error: String, mut done: Vec<PartName>, key: KeyPolicy) -> Self {
        done.retain(|part| part.refused().is_none());
        Self::Failed { error, done, key }
    }
}

/// One event's outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// Proof of the claim.
    pub token: ClaimToken,
    /// Which event of the claim.
    pub position: Position,
    /// The event's id.
    pub id: EventId,
    /// How its delivery ended.
    pub outcome: Outcome,
}

/// What a settlement changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Events that were no longer held: nothing was changed for them.
    pub lost: Vec<(ClaimToken, Position)>,
}

impl Settled {
    /// Everything was recorded.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Everything but these was recorded.
    #[must_use]
    pub fn except(lost: Vec<(ClaimToken, Position)>) -> Self {
        Self { lost }
    }
}

/// Why [`Source::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wakeup {
    /// Something may be due.
    Hint,
    /// Nothing was heard for the whole time.
    Timeout,
}

/// How a source hears of new events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listening {
    /// It is told at once.
    Up,
    /// It should be told, but is not at present; polling goes on.
    Down,
    /// It polls by choice.
    PollOnly,
}

/// Where committed events wait until a relay has delivered them.
///
/// Implemented by the in-memory source, by Postgres and by a Kafka consumer. Every clause below has its tests in the
/// `conformance` suite, which any source can run.
///
/// # Contract
/// 1. A claimed event is in no other claim until its lease has ended.
/// 2. A claim returns at most `max_events` events, and stops before the event that would exceed `max_bytes`
///    unless it is the first.
/// 3. A claim returns no event that is due in the future, and none of an excluded type.
/// 4. A settlement takes effect only while its claim is held; otherwise it changes nothing and is reported in
///    [`Settled::lost`].
/// 5. A claim can be settled in parts; what is not settled stays held.
/// 6. A completed or failed event is never claimed again.
/// 7. A retried event is claimed again once its time has come, with the next attempt and the parts done so far.
/// 8. A released event is claimed again without counting an attempt.
/// 9. When a lease ends unsettled, its events can be claimed again, each in a claim of its own; the loss of a
///    lone claim is counted in [`Claimed::lost_claims`]. Of several lone claims lost at once by one relay none need be
///    counted, if their events are then claimed one at a time: nobody can say which of them was to blame.
/// 10. Extending a held claim keeps it; extending a lost one reports it and revives nothing.
/// 11. Events that share an ordering key within a tenant are in at most one claim at a time, and come in publish order:
///     none before an earlier one that is due or was claimed before, however long that one has to wait.
/// 12. A failed event lets its key go on, stops it or parks it, as its [`KeyPolicy`] says. Of several that hold up their key
///     each does so until it is redriven or discarded, in whatever order.
/// 13. `wait` returns after its timeout at the latest.
/// 14. An event that cannot be decoded is claimed like any other, with the reason in place of the envelope.
/// 15. Dropping any of these futures leaves at most a claim that ends by its lease.
/// 16. What an operator has paused since it was claimed is named by `paused`, and stays held.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// Leases due events, oldest first.
    ///
    /// # Errors
    /// [`SourceError`] when the store cannot be reached or refuses; nothing is known to be claimed then.
    ///
    /// # Cancel safety
    /// A dropped claim may have taken events; they come back when the lease ends.
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError>;

    /// Ends claimed events, each by token, position and outcome. A relay makes up to two calls at a time, never two about one
    /// claim.
    ///
    /// # Errors
    /// [`SourceError`] when it is not known whether the outcomes were recorded. Settling the same again is safe:
    /// what had been recorded is then reported as lost.
    ///
    /// # Cancel safety
    /// A dropped settlement is recorded whole or not at all.
    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError>;

    /// Keeps claims for another `lease` from now on, and returns those that were lost.
    ///
    /// # Errors
    /// [`SourceError`] when the store cannot be reached; the claims run on to their end.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have extended.
    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError>;

    /// Of the events in these claims, those whose type or ordering key an operator has paused since. The relay hands them
    /// back, unless their delivery has begun. Defaults to none, for sources of which nothing can be paused.
    ///
    /// # Errors
    /// [`SourceError`] when the store cannot be reached; what is paused is then delivered a little longer.
    ///
    /// # Cancel safety
    /// Reads only.
    async fn paused(&self, tokens: &[ClaimToken]) -> Result<Vec<(ClaimToken, Position)>, SourceError> {
        let _ = tokens;
        Ok(Vec::new())
    }

    /// Returns when events may be due, or after `timeout`. Only ever a hint.
    ///
    /// # Cancel safety
    /// Nothing is lost but the hint.
    async fn wait(&self, timeout: Duration) -> Wakeup;

    /// How the source hears of new events, for health and metrics.
    fn listening(&self) -> Listening;
}
