//! A source in memory: for tests, examples, and events that may die with the process.

mod row;
mod store;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use row::Row;
pub use row::Status;
use store::Store;

use crate::{
    ClaimRequest, ClaimToken, Claimed, Due, Envelope, EventId, IntoNewEvent, InvalidEvent, Listening,
    OrderingKey, PAYLOAD_BYTES_MAX, Settled, Settlement, Source, SourceError, TenantId, Undecodable, Wakeup,
};

/// Events kept in memory. Follows the whole contract of [`Source`], durability aside.
///
/// Time is tokio's, so tests with a paused clock work. Settled events stay until [`prune`](Self::prune).
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPlaced { order: u64 }
/// # impl outbox_core::Event for OrderPlaced { const EVENT_TYPE: &'static str = "OrderPlaced"; }
/// use outbox_core::memory::{MemorySource, Status};
///
/// let source = MemorySource::new();
/// let id = source.publish(&OrderPlaced { order: 7 })?;
/// assert_eq!(source.status(id), Some(Status::Pending));
/// # Ok::<(), outbox_core::InvalidEvent>(())
/// ```
#[derive(Debug)]
pub struct MemorySource {
    store: Mutex<Store>,
    published: Notify,
    secret: i64,
}

/// As good as never, and still an instant that the clock can name.
const DELAY_MAX: Duration = Duration::from_secs(86_400 * 365 * 30);

/// How many events stand where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Not settled for good; those in claims included.
    pub pending: usize,
    /// Of the pending ones, those in claims.
    pub held: usize,
    /// Delivered.
    pub completed: usize,
    /// Dead letters, discarded ones included.
    pub failed: usize,
}

impl Default for MemorySource {
    fn default() -> Self {
        Self::new()
    }
}

impl MemorySource {
    /// An empty source.
    #[must_use]
    pub fn new() -> Self {
        Self {
            store: Mutex::default(),
            published: Notify::new(),
            secret: fastrand::i64(..),
        }
    }

    /// Publishes an event: a reference to an [`Event`](crate::Event), or a [`NewEvent`](crate::NewEvent). An id that its
    /// tenant has already adds nothing.
    ///
    /// # Errors
    /// [`InvalidEvent`] says what is wrong with it; the limits are those of the other publishers.
    pub fn publish(&self, event: impl IntoNewEvent) -> Result<EventId, InvalidEvent> {
        let event = event.into_new_event()?;
        event.check(PAYLOAD_BYTES_MAX)?;
        let now = Timestamp::now();
        let delay = match event.due {
            Due::AtOnce => Duration::ZERO,
            Due::At(instant) => Duration::try_from(instant.duration_since(now)).unwrap_or_default(),
            Due::After(delay) => delay,
        };
        let id = event.id;
        self.publish_after(event.into_envelope(now), delay);
        Ok(id)
    }

    /// Publishes an envelope, due at once; `false` when its tenant has an event of that id already.
    pub fn publish_envelope(&self, envelope: Envelope) -> bool {
        self.add(Row::new(envelope), None)
    }

    /// Publishes an envelope that is due after `delay`; `false` when its tenant has an event of that id already.
    pub fn publish_after(&self, envelope: Envelope, delay: Duration) -> bool {
        let time = (!delay.is_zero()).then(|| Instant::now() + delay.min(DELAY_MAX));
        self.add(Row::new(envelope), time)
    }

    /// Stores an event that cannot be decoded, as a damaged row would be, for tests.
    pub fn publish_undecodable(&self, id: EventId, why: Undecodable) -> bool {
        self.add(Row::undecodable(id, why), None)
    }

    fn add(&self, row: Row, not_before: Option<Instant>) -> bool {
        let new = self.lock().publish(row, not_before);
        if new {
            self.published.notify_one();
        }
        new
    }

    /// Where an event stands, whoever's it is.
    #[must_use]
    pub fn status(&self, id: EventId) -> Option<Status> {
        self.with_row(id, |row| row.status)
    }

    /// What the last failed attempt of an event said.
    #[must_use]
    pub fn last_error(&self, id: EventId) -> Option<String> {
        self.with_row(id, |row| row.error.clone()).flatten()
    }

    /// How many attempts of an event have failed since it was published or redriven.
    #[must_use]
    pub fn failed_attempts(&self, id: EventId) -> Option<u32> {
        self.with_row(id, |row| row.failures)
    }

    fn with_row<T>(&self, id: EventId, look: impl FnOnce(&Row) -> T) -> Option<T> {
        let store = self.lock();
        let row = store.rows.values().find(|row| row.id == id)?;
        Some(look(row))
    }

    /// Counts all events.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for row in self.lock().rows.values() {
            match row.status {
                Status::Pending => counts.pending += 1,
                Status::Completed => counts.completed += 1,
                Status::Failed => counts.failed += 1,
            }
            counts.held += usize::from(row.held_by.is_some());
        }
        counts
    }

    /// Makes a failed event pending again, with all its attempts; `false` when it is not failed or was discarded.
    pub fn redrive(&self, tenant: &TenantId, id: EventId) -> bool {
        self.operate(tenant, id, Store::redrive)
    }

    /// Gives a failed event up for good; `false` when it is not failed or was discarded before.
    pub fn discard(&self, tenant: &TenantId, id: EventId) -> bool {
        self.operate(tenant, id, Store::discard)
    }

    fn operate(&self, tenant: &TenantId, id: EventId, act: fn(&mut Store, i64) -> bool) -> bool {
        let mut store = self.lock();
        let position = store.ids.get(&(tenant.clone(), id)).copied();
        let changed = position.is_some_and(|position| act(&mut store, position));
        drop(store);
        self.published.notify_one();
        changed
    }

    /// Lets an ordering key go on that a failed event has stopped; `false` when it was not stopped.
    pub fn resume(&self, tenant: &TenantId, key: &OrderingKey) -> bool {
        let resumed = self.lock().resume(&(tenant.clone(), key.clone()));
        self.published.notify_one();
        resumed
    }

    /// Forgets completed events, and returns how many they were.
    pub fn prune(&self) -> usize {
        let mut store = self.lock();
        let before = store.rows.len();
        store.rows.retain(|_, row| row.status != Status::Completed);
        let Store { rows, ids, .. } = &mut *store;
        ids.retain(|_, position| rows.contains_key(position));
        before - rows.len()
    }

    /// The store is changed in one go under this lock, so a panic elsewhere cannot leave it half-changed.
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Source for MemorySource {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        Ok(self.lock().claim(&request, Instant::now(), self.secret))
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        let mut store = self.lock();
        let settled = store.settle(settlements, Instant::now());
        let wake = store.has_due();
        drop(store);
        if wake {
            self.published.notify_one();
        }
        Ok(settled)
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        let now = Instant::now();
        Ok(self.lock().extend(tokens, now + lease, now))
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        let end = Instant::now() + timeout;
        let change = self.lock().next_change();
        let until = change.map_or(end, |time| time.min(end));
        tokio::select! {
            () = self.published.notified() => Wakeup::Hint,
            () = tokio::time::sleep_until(until) => if until < end { Wakeup::Hint } else { Wakeup::Timeout },
        }
    }

    fn listening(&self) -> Listening {
        Listening::Up
    }
}
