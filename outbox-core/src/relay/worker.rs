//! A worker: takes work, delivers it, and says how that ended.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use super::caught::{Caught, panic_message};
use super::error_text::{bounded_text, drop_quietly, error_text};
use super::outcome::{Failed, PANICKED, Tried, TryResult, settle_outcome};
use super::pool::Pool;
use super::spans::{self, within};
use super::work::{Ended, Finished, Item, Items};
use crate::{Delivered, Delivery, Failure, FailureKind, KeyPolicy, Outcome, RunResult};

/// How long a delivery that was called off may take to end before its future is dropped.
pub(super) const CANCEL_GRACE: Duration = Duration::from_millis(500);

/// A delivery that took longer is no longer one of those that never wait.
const QUICK: Duration = Duration::from_micros(100);

/// Boxed, because a worker starts workers: the type would contain itself.
pub(super) fn work(pool: Arc<Pool>, slot: usize) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        while let Some(items) = pool.next(slot) {
            let worker = Worker { pool: &pool, slot };
            match items {
                Items::One(item) => worker.deliver_one(item).await,
                Items::Run(run) => worker.deliver_run(run).await,
            }
            // Deliveries that never wait would keep this thread from everything else.
            tokio::task::coop::consume_budget().await;
        }
    })
}

struct Worker<'a> {
    pool: &'a Arc<Pool>,
    slot: usize,
}

/// How a call of the dispatcher ended.
enum Ran<T> {
    Done(T),
    Panicked(String),
    /// The deadline passed; with the answer, if there was one within the grace period.
    TimedOut(Option<T>),
    /// The relay has called it off; with the answer, if there was one within the grace period.
    CalledOff(Option<T>),
}

impl Worker<'_> {
    async fn deliver_one(&self, mut item: Item) {
        let (result, quick) = self.try_one(&mut item).await;
        let finished = Finished {
            leaves: self.pool.slots.leave(self.slot),
            ..self.conclude(item, result)
        };
        let woken = self.pool.finish(finished, quick);
        let_run(woken).await;
    }

    /// Delivers events of one key in order. Ends at the first that holds the key up: the rest goes back.
    async fn deliver_run(&self, run: Vec<Item>) {
        let mut rest = VecDeque::from(run);
        let mut together = self.pool.dispatcher.pipelines();
        let mut held_up = false;
        while !rest.is_empty() {
            let (results, quick) = if held_up || self.pool.is_closed() {
                (vec![TryResult::CalledOff { done: None }], true)
            } else if together && rest.len() > 1 {
                self.try_run(ready(rest.make_contiguous())).await
            } else {
                self.try_first(&mut rest).await
            };
            // A run that ended without a word is taken apart, to see which event it is.
            together = together && !results.is_empty();
            let mut woken = false;
            for result in results {
                let Some(item) = rest.pop_front() else { break };
                let mut finished = self.conclude(item, result);
                held_up = held_up || !lets_key_go_on(&finished.outcome);
                if rest.is_empty() {
                    finished.leaves = self.pool.slots.leave(self.slot);
                }
                woken |= self.pool.finish(finished, quick);
            }
            let_run(woken).await;
        }
    }

    async fn try_first(&self, rest: &mut VecDeque<Item>) -> (Vec<TryResult>, bool) {
        let Some(first) = rest.front_mut() else {
            return (Vec::new(), true);
        };
        let (result, quick) = self.try_one(first).await;
        (vec![result], quick)
    }

    /// One try at one event; whether it never waited. What the relay has given up on meanwhile counts as called off,
    /// whatever it says: the event's next try is on its way.
    async fn try_one(&self, item: &mut Item) -> (TryResult, bool) {
        let start = Instant::now();
        if !may_start(item, start) {
            return (TryResult::CalledOff { done: None }, true);
        }
        let limit = item.rules.timeout;
        item.delivery.deadline = start + limit;
        let overdue = item.delivery.deadline + CANCEL_GRACE;
        self.pool.slots.begin(self.slot, item.held, overdue);
        self.pool.spans.open(&mut item.delivery);
        let dispatcher = &self.pool.dispatcher;
        let delivery = &item.delivery;
        let ran = match catch_unwind(AssertUnwindSafe(|| dispatcher.dispatch(delivery))) {
            Ok(future) => {
                let future = within(&delivery.span, future);
                self.run(Caught::new(future), std::slice::from_ref(delivery))
                    .await
            }
            Err(payload) => Ran::Panicked(panic_message(payload)),
        };
        if !self.pool.slots.end(self.slot) {
            drop_quietly(ran);
            return (TryResult::CalledOff { done: None }, false);
        }
        let quick = start.elapsed() < QUICK;
        (self.judge(ran, limit), quick)
    }

    /// One try at all events of a run at once. No results: it panicked or timed out, and nobody knows over which event.
    async fn try_run(&self, run: &mut [Item]) -> (Vec<TryResult>, bool) {
        let start = Instant::now();
        let limit = run
            .iter()
            .map(|item| item.rules.timeout)
            .max()
            .unwrap_or_default();
        let Some(first) = run.first() else {
            return (Vec::new(), true);
        };
        if !may_start(first, start) {
            return (vec![TryResult::CalledOff { done: None }], true);
        }
        let (held, deadline) = (first.held, start + limit);
        for item in &mut *run {
            item.delivery.deadline = deadline;
            self.pool.spans.open(&mut item.delivery);
        }
        self.pool.slots.begin(self.slot, held, deadline + CANCEL_GRACE);
        // Tokens of their own: if the run has to be taken apart, its events must not be called off already.
        let deliveries: Vec<Delivery> = run.iter().map(|item| own_token(&item.delivery)).collect();
        let dispatcher = &self.pool.dispatcher;
        let ran = match catch_unwind(AssertUnwindSafe(|| dispatcher.dispatch_run(&deliveries))) {
            Ok(future) => self.run(Caught::new(future), &deliveries).await,
            Err(payload) => Ran::Panicked(panic_message(payload)),
        };
        if !self.pool.slots.end(self.slot) {
            drop_quietly(ran);
            return (vec![TryResult::CalledOff { done: None }], false);
        }
        (self.judge_run(ran, limit), false)
    }

    /// Polls once before anything is set up for waiting: most deliveries of a busy relay need no more.
    async fn run<T>(&self, mut call: Caught<'_, T>, deliveries: &[Delivery]) -> Ran<T> {
        let first = poll_fn(|cx| Poll::Ready(Pin::new(&mut call).poll(cx))).await;
        if let Poll::Ready(done) = first {
            return done.map_or_else(Ran::Panicked, Ran::Done);
        }
        self.pool.fall_asleep();
        let ran = wait_for(call, deliveries).await;
        self.pool.wake_up();
        ran
    }

    /// What becomes of the event. Its span ends here.
    fn conclude(&self, mut item: Item, result: TryResult) -> Finished {
        let ended = match &result {
            TryResult::Delivered(delivered) => Ended::Delivered(*delivered),
            TryResult::CalledOff { .. } => Ended::NotTried,
            TryResult::Failed(failed) => match failed.kind {
                FailureKind::Outage => Ended::Outage,
                FailureKind::NotTried => Ended::NotTried,
                FailureKind::Retry | FailureKind::Reject => Ended::Failed,
            },
            TryResult::TimedOut { .. } => Ended::TimedOut,
            TryResult::Panicked { .. } => Ended::Failed,
        };
        let outage = match &result {
            TryResult::Failed(failed) if failed.kind == FailureKind::Outage => Some(failed.error.clone()),
            _ => None,
        };
        let error = spans::error(&item.delivery.span, &result);
        let tried = Tried {
            attempt: item.delivery.attempt,
            outages: item.rules.outages.load(Ordering::Relaxed),
            done: &item.delivery.done,
        };
        let jitter = if ended == Ended::NotTried {
            0.0
        } else {
            fastrand::f64()
        };
        let outcome = settle_outcome(result, &tried, (&item.rules.retry, item.rules.key), jitter);
        let label = ended.label(&outcome);
        self.pool.spans.close(&mut item.delivery, label, error);
        Finished {
            item,
            outcome,
            ended,
            outage,
            leaves: Vec::new(),
        }
    }

    fn judge(&self, ran: Ran<Result<Delivered, Failure>>, limit: Duration) -> TryResult {
        match ran {
            Ran::Done(result) => self.result(result),
            Ran::Panicked(message) => self.panicked(&message),
            Ran::TimedOut(None) => TryResult::TimedOut { limit, done: None },
            Ran::CalledOff(None) => TryResult::CalledOff { done: None },
            Ran::TimedOut(Some(result)) => match self.result(result) {
                // It had all of its time: that is charged, whatever it says.
                TryResult::Failed(failed) if is_free(failed.kind) => TryResult::TimedOut {
                    limit,
                    done: Some(failed.done),
                },
                // The dispatcher knows better than we do which part took too long.
                result => result,
            },
            Ran::CalledOff(Some(result)) => match self.result(result) {
                TryResult::Failed(failed) if failed.kind != FailureKind::Reject => TryResult::CalledOff {
                    done: Some(failed.done),
                },
                result => result,
            },
        }
    }

    fn judge_run(&self, ran: Ran<RunResult>, limit: Duration) -> Vec<TryResult> {
        let (run, last) = match ran {
            Ran::Done(run) => (run, None),
            Ran::Panicked(_) => return Vec::new(),
            Ran::TimedOut(None) => return Vec::new(),
            Ran::TimedOut(Some(run)) if run.is_empty() => return Vec::new(),
            Ran::TimedOut(Some(run)) => (run, Some(TryResult::TimedOut { limit, done: None })),
            Ran::CalledOff(run) => (run.unwrap_or_default(), Some(TryResult::CalledOff { done: None })),
        };
        let mut results = Vec::with_capacity(run.len() + 1);
        for result in run {
            let failed = result.is_err();
            results.push(self.result(result));
            if failed {
                return results;
            }
        }
        results.extend(last);
        results
    }

    fn result(&self, result: Result<Delivered, Failure>) -> TryResult {
        match result {
            Ok(delivered) => TryResult::Delivered(delivered),
            Err(failure) => {
                let error = error_text(&*failure.error, self.pool.error_max_len);
                drop_quietly(failure.error);
                TryResult::Failed(Failed {
                    kind: failure.kind,
                    error,
                    done: failure.done,
                    retry_after: failure.retry_after,
                })
            }
        }
    }

    fn panicked(&self, message: &str) -> TryResult {
        TryResult::Panicked {
            message: bounded_text(message, self.pool.error_max_len.saturating_sub(PANICKED.len())),
        }
    }
}

/// Lets the loop run, if it was woken. The runtime keeps what a task wakes for the thread that the task is on: if the next
/// delivery blocked that thread, it would block the loop.
async fn let_run(woken: bool) {
    if woken {
        tokio::task::yield_now().await;
    }
}

/// Whether a failure of that kind costs the event no attempt.
fn is_free(kind: FailureKind) -> bool {
    matches!(kind, FailureKind::Outage | FailureKind::NotTried)
}

fn own_token(delivery: &Delivery) -> Delivery {
    Delivery {
        cancelled: delivery.cancelled.child_token(),
        ..delivery.clone()
    }
}

/// Whether a delivery may begin. Asked once before each try: the event then begins or goes back, whatever is said meanwhile.
pub(super) fn may_start(item: &Item, now: Instant) -> bool {
    let meant_to = !item.delivery.cancelled.is_cancelled() && !item.rules.open.load(Ordering::Relaxed);
    meant_to && item.lease.is_trusted(now) && !item.lease.goes_back(item.held)
}

/// The part of a run that may start now. What goes back further on, because its type was paused, does so in its turn.
fn ready(run: &mut [Item]) -> &mut [Item] {
    let now = Instant::now();
    let ready = run.iter().take_while(|item| may_start(item, now)).count();
    let (ready, _) = run.split_at_mut(ready.max(1).min(run.len()));
    ready
}

async fn wait_for<T>(mut call: Caught<'_, T>, deliveries: &[Delivery]) -> Ran<T> {
    let Some(first) = deliveries.first() else {
        return Ran::CalledOff(None);
    };
    let timed_out = tokio::select! {
        biased;
        done = &mut call => {
            // A delivery may see before this that it was called off, and fail for that.
            let called_off = first.cancelled.is_cancelled();
            let answer = |done| if called_off { Ran::CalledOff(Some(done)) } else { Ran::Done(done) };
            return done.map_or_else(Ran::Panicked, answer);
        }
        () = first.cancelled.cancelled() => false,
        () = tokio::time::sleep_until(first.deadline) => true,
    };
    for delivery in deliveries {
        delivery.cancelled.cancel();
    }
    let answer = match tokio::time::timeout(CANCEL_GRACE, &mut call).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(message)) => return Ran::Panicked(message),
        Err(_) => None,
    };
    if timed_out {
        Ran::TimedOut(answer)
    } else {
        Ran::CalledOff(answer)
    }
}

/// Whether the next event of the same key may be delivered after this outcome.
fn lets_key_go_on(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Completed => true,
        Outcome::Failed { key, .. } => *key == KeyPolicy::GoOn,
        Outcome::Retry { .. } | Outcome::Released { .. } => false,
    }
}
