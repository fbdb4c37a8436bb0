//! What workers share: the queue of work, and the results.
//!
//! A worker takes one piece of work at a time, so a slow delivery holds up nothing but itself. Workers are started as
//! work waits: a few at first, and one more whenever a worker begins to wait for its delivery, up to the limit. So
//! deliveries that never wait are done by few workers, without a task for each.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::slots::Slots;
use super::spans::Spans;
use super::work::{Finished, HeldId, Items, Work};
use super::worker;
use crate::{Dispatcher, RelaySettings};

/// So many quick results wait for each other before the loop is woken.
const RESULTS_MAX: usize = 64;

pub(super) struct Pool {
    pub(super) dispatcher: Arc<dyn Dispatcher>,
    pub(super) error_max_len: usize,
    pub(super) spans: Spans,
    pub(super) slots: Slots,
    queue: Mutex<Queue>,
    closed: AtomicBool,
    finished: Mutex<Vec<Finished>>,
    pub(super) results: Notify,
    /// Workers that are running, not waiting for their delivery.
    awake: AtomicUsize,
    /// More workers than threads would only take turns.
    awake_max: usize,
}

struct Queue {
    work: VecDeque<Work>,
    idle: Vec<usize>,
    busy: usize,
    busy_max: usize,
    /// How much work was taken since the start, to see whether the queue moves.
    taken: u64,
}

impl Pool {
    pub(super) fn new(dispatcher: Arc<dyn Dispatcher>, spans: Spans, settings: &RelaySettings) -> Self {
        let concurrency = settings.concurrency.get() as usize;
        // As many again may hang without taking a place from the others.
        let slots = concurrency.saturating_mul(2);
        let awake_max = tokio::runtime::Handle::current().metrics().num_workers().max(1);
        Self {
            dispatcher,
            error_max_len: settings.error_max_len,
            spans,
            slots: Slots::new(slots),
            queue: Mutex::new(Queue {
                work: VecDeque::new(),
                idle: (0..slots).rev().collect(),
                busy: 0,
                busy_max: concurrency,
                taken: 0,
            }),
            closed: AtomicBool::new(false),
            finished: Mutex::default(),
            results: Notify::new(),
            awake: AtomicUsize::new(0),
            awake_max,
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finished(&self) -> MutexGuard<'_, Vec<Finished>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues work and starts workers for it.
    pub(super) fn push(self: &Arc<Self>, work: Vec<Work>) {
        let wanted = work.len().min(self.awake_max);
        self.queue().work.extend(work);
        for _ in 0..wanted {
            if !self.start_worker() {
                break;
            }
        }
    }

    /// Starts a worker if work waits, a thread is free for it, and the limit allows; whether it did.
    pub(super) fn start_worker(self: &Arc<Self>) -> bool {
        if self.awake.load(Ordering::Relaxed) >= self.awake_max {
            return false;
        }
        self.start_worker_anyway()
    }

    fn start_worker_anyway(self: &Arc<Self>) -> bool {
        let mut queue = self.queue();
        if self.is_closed() || queue.work.is_empty() || queue.busy >= queue.busy_max {
            return false;
        }
        let Some(slot) = queue.idle.pop() else {
            return false;
        };
        queue.busy += 1;
        drop(queue);
        self.awake.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(worker::work(Arc::clone(self), slot));
        true
    }

    /// Starts a worker although all threads seem busy, if no work was taken since `taken`; how much was taken now.
    ///
    /// Deliveries that block their threads without telling the runtime look awake, and would starve the queue.
    pub(super) fn push_on(self: &Arc<Self>, taken: u64) -> u64 {
        let now = self.queue().taken;
        if now == taken {
            self.start_worker_anyway();
        }
        now
    }

    /// The next piece of work for this worker, or `None`: then the worker has given its slot back and must end.
    pub(super) fn next(&self, slot: usize) -> Option<Items> {
        let mut queue = self.queue();
        let may_go_on = queue.busy <= queue.busy_max && !self.is_closed();
        let Some(work) = may_go_on.then(|| queue.work.pop_front()).flatten() else {
            queue.busy -= 1;
            queue.idle.push(slot);
            // ORDER: while the queue is locked. A push in between would find all awake, and start nobody.
            self.awake.fetch_sub(1, Ordering::Relaxed);
            drop(queue);
            self.results.notify_one();
            return None;
        };
        queue.taken += 1;
        drop(queue);
        Some(self.slots.take_on(slot, work))
    }

    /// A worker is about to wait for its delivery: what it has done is shown, and its thread can serve another.
    pub(super) fn fall_asleep(self: &Arc<Self>) {
        self.awake.fetch_sub(1, Ordering::Relaxed);
        self.results.notify_one();
        self.start_worker();
    }

    pub(super) fn wake_up(&self) {
        self.awake.fetch_add(1, Ordering::Relaxed);
    }

    /// Hands over a result; `quick` ones wait for company. Whether the loop was woken.
    pub(super) fn finish(&self, result: Finished, quick: bool) -> bool {
        let mut finished = self.finished();
        finished.push(result);
        let full = finished.len() >= RESULTS_MAX;
        drop(finished);
        let wakes = full || !quick;
        if wakes {
            self.results.notify_one();
        }
        wakes
    }

    /// Swaps the results so far into an empty `into`.
    pub(super) fn take_finished(&self, into: &mut Vec<Finished>) {
        std::mem::swap(&mut *self.finished(), into);
    }

    /// The events whose delivery has begun and has not ended.
    pub(super) fn begun(&self) -> HashSet<HeldId> {
        self.slots.begun(self.dispatcher.pipelines())
    }

    /// Everything that no worker has begun.
    pub(super) fn take_queue(&self) -> Vec<Work> {
        self.queue().work.drain(..).collect()
    }

    /// From now on no worker begins another event.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Lets another worker run beside one that hangs, or takes that right back.
    pub(super) fn stand_in(self: &Arc<Self>, stuck: usize, concurrency: usize) {
        let busy_max = concurrency + stuck.min(concurrency);
        self.queue().busy_max = busy_max;
        self.start_worker_anyway();
    }
}
