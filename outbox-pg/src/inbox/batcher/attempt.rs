//! Runs a batch, and its events one by one if it fails.
//!
//! # Time
//! A batch of several events has half of its time. The rest is for trying its events alone, so that of a batch that
//! hangs only the event that is to blame runs out of time, and is charged for it.

use std::collections::{HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::select;
use outbox_core::{Context, Event, HandlerError, PartName, TenantId};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{Batch, Shared};
use crate::inbox::batch::TxBatchHandler;
use crate::inbox::outage::{connection, database_error, passed_on};
use crate::inbox::transaction::still_open;

/// Who waits for an event, and what is needed to try it once more.
type Waiter = (Context, oneshot::Sender<Result<(), HandlerError>>);

/// The events of a failed batch that nobody has begun to try alone.
struct Left {
    tenant_id: TenantId,
    name: PartName,
    waiters: Mutex<VecDeque<Waiter>>,
}

impl<E: Event, H: TxBatchHandler<E>> Shared<E, H> {
    /// Runs a batch to the end of its events; only one that hangs alone may be left behind.
    pub(super) async fn run(self: Arc<Self>, batch: Batch<E>) {
        let Batch {
            tenant_id,
            name,
            items,
        } = batch;
        let (mut events, mut waiters) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
        for item in items {
            waiters.push((item.ctx.clone(), item.done));
            events.push((item.event, item.ctx));
        }
        let alone = events.len() == 1;
        match self.attempt(&name, &tenant_id, events).await {
            Ok(()) => waiters.into_iter().for_each(|(_, done)| tell(done, Ok(()))),
            Err(HandlerError::Outage(cause)) => {
                let cause = cause.to_string();
                let outage = |(_, done)| tell(done, Err(HandlerError::outage(cause.clone())));
                waiters.into_iter().for_each(outage);
            }
            Err(error) if alone => {
                if let Some((_, done)) = waiters.pop() {
                    tell(done, Err(error));
                }
            }
            Err(error) => {
                tracing::debug!(?error, handler = %name, "outbox_batch_failed");
                let left = Left {
                    tenant_id,
                    name,
                    waiters: Mutex::new(waiters.into()),
                };
                self.one_by_one(left).await;
            }
        }
    }

    /// Tries events alone, two at a time, until none is left to begin: one that hangs keeps one place, in a task that
    /// goes on without us, and the others take turns in the second.
    async fn one_by_one(self: Arc<Self>, left: Left) {
        let left = Arc::new(left);
        let [one, another] = [(); 2].map(|()| tokio::spawn(Arc::clone(&self).take_turns(Arc::clone(&left))));
        select(one, another).await;
    }

    async fn take_turns(self: Arc<Self>, left: Arc<Left>) {
        while let Some((ctx, done)) = left.next() {
            let result = match ctx.envelope().payload.decode() {
                Ok(event) => {
                    self.attempt(&left.name, &left.tenant_id, vec![(event, ctx)])
                        .await
                }
                Err(_) => Err(HandlerError::reject("the payload can no longer be decoded")),
            };
            tell(done, result);
        }
    }

    /// Handles events in one transaction, within their time.
    async fn attempt(
        &self,
        name: &PartName,
        tenant_id: &TenantId,
        events: Vec<(E, Context)>,
    ) -> Result<(), HandlerError> {
        let deadlines = events.iter().map(|(_, ctx)| ctx.deadline());
        let Some(deadline) = deadlines.max() else {
            return Ok(());
        };
        let limit = match events.len() {
            1 => deadline,
            _ => half_way(Instant::now(), deadline),
        };
        let trying = AssertUnwindSafe(self.handle(name, tenant_id, events, limit)).catch_unwind();
        match timeout_at(limit, trying).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(HandlerError::retry("the batch handler panicked")),
            Err(_) => Err(HandlerError::retry("the time of the batch was up")),
        }
    }

    async fn handle(
        &self,
        name: &PartName,
        tenant_id: &TenantId,
        mut events: Vec<(E, Context)>,
        limit: Instant,
    ) -> Result<(), HandlerError> {
        let ids = events.iter().map(|(_, ctx)| ctx.event_id().as_uuid()).collect();
        let mut session = connection(&self.inbox.pool, limit).await?;
        let mut tx = session.begin("BEGIN").await.map_err(database_error)?;
        // Nothing cancels a statement whose future was dropped: hanging on, it would keep what the events wait for when they
        // are tried alone, and all would run out of time.
        let left = limit.saturating_duration_since(Instant::now());
        self.inbox
            .limit_statements(&mut tx, left)
            .await
            .map_err(database_error)?;
        let new = self.inbox.receive_all(&mut tx, name, tenant_id, ids).await;
        // Taken out as they are found: an event that is in the batch twice is handled once.
        let mut new: HashSet<_> = new.map_err(database_error)?.into_iter().collect();
        events.retain(|(_, ctx)| new.remove(&ctx.event_id().as_uuid()));
        if events.is_empty() {
            return Ok(());
        }
        self.handler.handle(events, &mut tx).await.map_err(passed_on)?;
        still_open(&mut tx).await?;
        tx.commit().await.map_err(database_error)
    }
}

impl Left {
    /// The next one whose delivery was not called off meanwhile.
    fn next(&self) -> Option<Waiter> {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.retain(|(_, done)| !done.is_closed());
        waiters.pop_front()
    }
}

fn half_way(now: Instant, end: Instant) -> Instant {
    now + end.saturating_duration_since(now) / 2
}

fn tell(done: oneshot::Sender<Result<(), HandlerError>>, result: Result<(), HandlerError>) {
    // Nobody waits any more: the delivery was called off. What was committed is known to the inbox.
    let _ = done.send(result);
}
