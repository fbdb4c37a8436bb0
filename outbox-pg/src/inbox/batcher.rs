//! Gathers what is dispatched one by one into batches.
//!
//! # Overview
//! The relay dispatches events at the same time, each on its own. Each joins a queue; while one transaction runs, the
//! next batch gathers behind it. So a batch is as large as the load, and a lone event waits for nobody. Whose batch has
//! just ended makes room for others in the relay, which come one by one: they are waited for, for a moment, or the first
//! of them would be a batch of its own. It fits every dispatcher, and events of one key are never in one batch, for they
//! are dispatched one after the other.
//!
//! # Failure
//! When a batch fails, each of its events is tried in a transaction of its own: a bad one harms only itself. When the
//! database is away, all are told so. A batch runs in a task of its own, so one event that is called off ends no other's.

mod attempt;

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::{Context, Event, Handler, HandlerError, PartName, TenantId};
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::PgInbox;
use super::batch::TxBatchHandler;
use super::transaction::recorded_name;

/// How long the successors of a batch are waited for.
const GATHER: Duration = Duration::from_millis(2);

/// A [`Handler`] that hands events to a [`TxBatchHandler`] in batches. Made by [`PgInbox::batched`].
///
/// Its throughput grows with the relay's concurrency: only events that are in flight at the same time can share a batch.
pub struct Batched<E, H> {
    shared: Arc<Shared<E, H>>,
}

struct Shared<E, H> {
    inbox: PgInbox,
    name: Option<PartName>,
    handler: H,
    events_max: usize,
    transactions_max: usize,
    queue: Mutex<Queue<E>>,
    /// As many events wait as were wanted.
    gathered: Notify,
}

struct Queue<E> {
    waiting: VecDeque<Item<E>>,
    /// How many events a task waits for.
    wanted: usize,
    /// How many transactions run.
    running: usize,
}

struct Item<E> {
    event: E,
    ctx: Context,
    name: PartName,
    done: oneshot::Sender<Result<(), HandlerError>>,
}

impl<E, H> Batched<E, H> {
    pub(super) fn new(inbox: PgInbox, handler: H) -> Self {
        Self::of(inbox, handler, None, (500, 1))
    }

    fn of(inbox: PgInbox, handler: H, name: Option<PartName>, limits: (usize, usize)) -> Self {
        Self {
            shared: Arc::new(Shared {
                inbox,
                name,
                handler,
                events_max: limits.0,
                transactions_max: limits.1,
                queue: Mutex::new(Queue {
                    waiting: VecDeque::new(),
                    wanted: 0,
                    running: 0,
                }),
                gathered: Notify::new(),
            }),
        }
    }

    /// Takes the parts out again; nobody else has them before the handler is registered.
    fn change(self, change: impl FnOnce(&mut Shared<E, H>)) -> Self {
        let mut shared = self.shared;
        if let Some(shared) = Arc::get_mut(&mut shared) {
            change(shared);
        }
        Self { shared }
    }

    /// Sets how many events one transaction takes. Defaults to 500.
    #[must_use]
    pub fn events_max(self, events_max: NonZeroUsize) -> Self {
        self.change(|shared| shared.events_max = events_max.get())
    }

    /// Sets how many transactions run at the same time, each on a connection of the pool. After a batch has failed it is
    /// one more for a while, and one for each event that hangs alone. Defaults to 1.
    #[must_use]
    pub fn transactions_max(self, transactions_max: NonZeroUsize) -> Self {
        self.change(|shared| shared.transactions_max = transactions_max.get())
    }

    /// Sets the name under which events are recorded. Defaults to the name that the handler is registered under.
    #[must_use]
    pub fn recorded_as(self, name: PartName) -> Self {
        self.change(|shared| shared.name = Some(name))
    }
}

impl<E, H> fmt::Debug for Batched<E, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batched")
            .field("events_max", &self.shared.events_max)
            .field("transactions_max", &self.shared.transactions_max)
            .finish_non_exhaustive()
    }
}

impl<E: Event, H: TxBatchHandler<E>> Handler<E> for Batched<E, H> {
    async fn handle(&self, event: E, ctx: Context) -> Result<(), HandlerError> {
        let name = recorded_name(self.shared.name.as_ref(), &ctx)?;
        let (done, result) = oneshot::channel();
        let item = Item {
            event,
            ctx,
            name,
            done,
        };
        if let Some(place) = Place::join(&self.shared, item) {
            tokio::spawn(place.run());
        }
        match result.await {
            Ok(result) => result,
            Err(_) => Err(HandlerError::outage("the batch was dropped before it had run")),
        }
    }
}

/// The right to run one transaction at a time; given back when dropped, however its task ends.
struct Place<E, H> {
    shared: Arc<Shared<E, H>>,
    held: bool,
}

impl<E, H> Drop for Place<E, H> {
    fn drop(&mut self) {
        if self.held {
            self.shared.queue().running -= 1;
        }
    }
}

impl<E: Event, H: TxBatchHandler<E>> Place<E, H> {
    /// Joins the queue. Returns a place if one is free; else a running task takes the item along.
    fn join(shared: &Arc<Shared<E, H>>, item: Item<E>) -> Option<Self> {
        let mut queue = shared.queue();
        queue.waiting.push_back(item);
        if queue.running >= shared.transactions_max {
            if queue.waiting.len() == queue.wanted {
                shared.gathered.notify_one();
            }
            return None;
        }
        queue.running += 1;
        Some(Self {
            shared: Arc::clone(shared),
            held: true,
        })
    }

    /// Runs batches until none is waiting.
    async fn run(mut self) {
        while let Some(batch) = self.next() {
            let events = batch.items.len();
            Arc::clone(&self.shared).run(batch).await;
            if events > 1 {
                self.gather(events).await;
            }
        }
    }

    /// Waits for as many events as the last batch had, for a moment.
    async fn gather(&self, events: usize) {
        let enough = || {
            let mut queue = self.shared.queue();
            queue.wanted = events;
            queue.waiting.len() >= events
        };
        let gathered = async {
            while !enough() {
                self.shared.gathered.notified().await;
            }
        };
        // When fewer come than before, what is there will do.
        let _ = timeout(GATHER, gathered).await;
    }

    fn next(&mut self) -> Option<Batch<E>> {
        let mut queue = self.shared.queue();
        let batch = queue.take(self.shared.events_max);
        if batch.is_none() {
            // ORDER: the place is given back under the lock that found nothing, or an event could be left behind.
            queue.running -= 1;
            self.held = false;
        }
        batch
    }
}

/// Events of one tenant for one handler.
struct Batch<E> {
    tenant_id: TenantId,
    name: PartName,
    items: Vec<Item<E>>,
}

impl<E> Queue<E> {
    /// Takes the first event and those after it that can share its transaction. Whose delivery was called off meanwhile
    /// is left out.
    fn take(&mut self, events_max: usize) -> Option<Batch<E>> {
        self.waiting.retain(|item| !item.done.is_closed());
        let first = self.waiting.pop_front()?;
        let mut batch = Batch {
            tenant_id: first.ctx.tenant_id().clone(),
            name: first.name.clone(),
            items: vec![first],
        };
        let mut others = VecDeque::new();
        for item in self.waiting.drain(..) {
            let fits = *item.ctx.tenant_id() == batch.tenant_id && item.name == batch.name;
            match fits && batch.items.len() < events_max {
                true => batch.items.push(item),
                false => others.push_back(item),
            }
        }
        self.waiting = others;
        Some(batch)
    }
}

impl<E, H> Shared<E, H> {
    fn queue(&self) -> MutexGuard<'_, Queue<E>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{Delivery, Envelope, EventId, EventType, Payload, State};
    use sqlx::postgres::PgPoolOptions;
    use sqlx::{PgConnection, PgPool};
    use tokio::time::Instant;

    use super::*;
    use crate::Names;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Noted;

    impl Event for Noted {
        const EVENT_TYPE: &'static str = "Noted";
    }

    async fn note(_: Vec<(Noted, Context)>, _: &mut PgConnection) -> Result<(), HandlerError> {
        Ok(())
    }

    fn item() -> Item<Noted> {
        let id = EventId::from_uuid(uuid::Uuid::nil());
        let (event_type, payload) = (EventType::new("Noted").unwrap(), Payload::from_json("null"));
        let envelope = Envelope::new(id, event_type, payload, jiff::Timestamp::UNIX_EPOCH);
        let delivery = Delivery::new(Arc::new(envelope), Instant::now());
        Item {
            event: Noted,
            ctx: Context::new(Arc::new(delivery), Arc::new(State::default())),
            name: PartName::new("notes").unwrap(),
            done: oneshot::channel().0,
        }
    }

    fn pool() -> PgPool {
        PgPoolOptions::new()
            .connect_lazy("postgres://nowhere.invalid")
            .unwrap()
    }

    /// How long the task that has the place of this handler waits for 20 events when so many come.
    async fn wait(coming: usize) -> Duration {
        let shared = Batched::new(PgInbox::new(pool(), &Names::default()), note).shared;
        let place = Place::join(&shared, item()).unwrap();
        shared.queue().waiting.clear();
        let began = Instant::now();
        let gathering = tokio::spawn(async move { place.gather(20).await });
        tokio::task::yield_now().await;
        for _ in 0..coming {
            assert!(Place::join(&shared, item()).is_none(), "the place is held");
        }
        gathering.await.unwrap();
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn the_successors_of_a_batch_are_waited_for_until_they_are_as_many() {
        assert_eq!(wait(20).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn fewer_successors_are_waited_for_for_a_moment() {
        let waited = wait(19).await;
        assert!(waited >= GATHER && waited < GATHER * 2, "{waited:?}");
    }
}
