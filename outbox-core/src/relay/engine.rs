//! The state of a running relay, and what each occurrence does to it.
//!
//! Owned by one task. Nothing in here waits, except [`Engine::next`].

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use slab::Slab;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::backoff::Backoff;
use super::builder::Parts;
use super::causes::Causes;
use super::health::Health;
use super::job::{Job, Jobs, answer};
use super::lanes::{LaneNumber, Lanes};
use super::lease::Lease;
use super::leases::Leases;
use super::pace::Pace;
use super::pausing::Pausing;
use super::pool::Pool;
use super::reminders::Reminders;
use super::report::Report;
use super::results::{chain, say_poll_failed};
use super::run::Run;
use super::spans::Spans;
use super::types::{Rules, Types};
use super::work::{Ended, Finished, HeldId};
use crate::telemetry::{Metrics, NoMetrics};
use crate::{
    ClaimRequest, ClaimToken, Claimed, Dispatcher, Envelope, EventId, PartName, Position, RelaySettings,
    Settled, Source, SourceError,
};

/// An event between its claim and the end of its delivery.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) id: HeldId,
    pub(super) event: EventId,
    pub(super) position: Position,
    pub(super) attempt: u32,
    /// Absent when there are none, as mostly.
    pub(super) done: Option<Arc<[PartName]>>,
    pub(super) envelope: Arc<Envelope>,
    pub(super) rules: Arc<Rules>,
    pub(super) lease: Arc<Lease>,
    /// The run that it is part of, if it was not claimed as the only event of its key.
    pub(super) run: Option<Arc<Run>>,
    pub(super) cancelled: CancellationToken,
    pub(super) bytes: u64,
}

/// What the loop wakes up for.
pub(super) enum Occurrence {
    Stop,
    Finished,
    Claimed(Result<Vec<Claimed>, SourceError>),
    Settled(LaneNumber, Result<Settled, SourceError>),
    Extended(Result<Vec<ClaimToken>, SourceError>),
    Paused(Result<Vec<(ClaimToken, Position)>, SourceError>),
    /// Events may be due, or nothing was heard for a poll timeout.
    Hint,
    Time,
}

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A claim under way.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) at: Instant,
    pub(super) request: ClaimRequest,
}

pub(super) struct Engine {
    pub(super) settings: RelaySettings,
    pub(super) source: Arc<dyn Source>,
    pub(super) dispatcher: Arc<dyn Dispatcher>,
    pub(super) metrics: Arc<dyn Metrics>,
    pub(super) health: Arc<Health>,
    pub(super) pool: Arc<Pool>,
    pub(super) jobs: Jobs,
    pub(super) report: Report,
    pub(super) held: Slab<Held>,
    pub(super) held_bytes: u64,
    /// How many of them wait behind another event of their run.
    pub(super) behind: usize,
    generation: u32,
    pub(super) types: Types,
    pub(super) leases: Leases,
    pub(super) settling: Lanes,
    pub(super) pausing: Pausing,
    pub(super) pace: Pace,
    /// A claim may find something: nothing has said yet that the source is drained.
    pub(super) more: bool,
    pub(super) claim: Option<Job<Vec<Claimed>>>,
    pub(super) asked: Option<Asked>,
    claim_backoff: Backoff,
    claim_causes: Causes,
    pub(super) settle_causes: Causes,
    claim_after: Option<Instant>,
    wait: Option<Wait>,
    pub(super) reminders: Reminders,
    pub(super) sweep_at: Option<Instant>,
    pub(super) taken_seen: u64,
    pub(super) stuck: Vec<HeldId>,
    pub(super) stopping: bool,
    finished: Vec<Finished>,
}

/// How often leases and deadlines are looked at while events are held.
pub(super) const SWEEP: Duration = Duration::from_millis(250);

impl Engine {
    pub(super) fn new(parts: Parts) -> Self {
        let now = Instant::now();
        let settings = parts.settings;
        let spans = Spans {
            prefix: parts.span_prefix,
            links: parts.span_links,
        };
        Self {
            pool: Arc::new(Pool::new(Arc::clone(&parts.dispatcher), spans, &settings)),
            jobs: Jobs {
                source: Arc::clone(&parts.source),
                limit: settings.lease,
            },
            source: parts.source,
            dispatcher: parts.dispatcher,
            metrics: parts.metrics.unwrap_or_else(|| Arc::new(NoMetrics)),
            health: parts.health,
            report: Report::default(),
            held: Slab::new(),
            held_bytes: 0,
            behind: 0,
            generation: 0,
            types: Types::default(),
            leases: Leases::new(settings.lease),
            settling: Lanes::new(settings.batch_size.get() as usize),
            pausing: Pausing::new(settings.poll_timeout, now),
            pace: Pace::new(settings.concurrency, settings.batch_size, now),
            more: true,
            claim: None,
            asked: None,
            claim_backoff: Backoff::default(),
            claim_causes: Causes::default(),
            settle_causes: Causes::default(),
            claim_after: None,
            wait: None,
            reminders: Reminders::default(),
            sweep_at: None,
            taken_seen: 0,
            stuck: Vec::new(),
            stopping: false,
            finished: Vec::new(),
            settings,
        }
    }

    /// Claims if something may be due and there is room worth a claim; listens if nothing is due.
    pub(super) fn claim_or_wait(&mut self, now: Instant) {
        if self.stopping || self.claim.is_some() || self.claim_after.is_some_and(|time| now < time) {
            return;
        }
        self.claim_after = None;
        if !self.more {
            self.listen();
            return;
        }
        let bytes = self.settings.max_bytes.saturating_sub(self.held_bytes);
        let crowded = self.held_bytes > 0 && bytes < self.settings.max_bytes / 8;
        let backlog = self.settings.batch_size.get() as usize * 4;
        if crowded || self.settling.len() > backlog {
            return; // The next finished or recorded event leads back here.
        }
        let waiting = self.behind + self.types.waiting();
        let Some(events) = self.pace.ask(self.held.len(), waiting, now) else {
            return;
        };
        let request = ClaimRequest::new(events, self.settings.lease)
            .with_max_bytes(bytes.max(1))
            .with_excluded_types(self.types.excluded(now));
        self.more = false;
        self.wait = None;
        self.claim = Some(self.jobs.claim(request.clone()));
        self.asked = Some(Asked { at: now, request });
    }

    fn listen(&mut self) {
        if self.wait.is_some() {
            return;
        }
        let (source, timeout) = (Arc::clone(&self.source), self.settings.poll_timeout);
        self.wait = Some(Box::pin(async move {
            let wait = AssertUnwindSafe(source.wait(timeout)).catch_unwind();
            // Polling depends on no listener: not on one that never returns, nor on one that panics.
            let start = Instant::now();
            if let Ok(Err(_)) = tokio::time::timeout(timeout + SWEEP, wait).await {
                tokio::time::sleep_until(start + timeout).await;
            }
        }));
    }

    /// Ends what is over by time alone: waits of own events, and pauses after outages.
    pub(super) fn note_time(&mut self, now: Instant) {
        if self.reminders.pass(now) | self.types.resume(now) {
            self.poll_again();
        }
        self.note_breakers();
    }

    pub(super) fn stop_listening(&mut self) {
        self.wait = None;
    }

    /// Something may be due now.
    pub(super) fn poll_again(&mut self) {
        self.more = true;
        self.wait = None;
    }

    pub(super) fn claim_failed(&mut self, error: &SourceError, now: Instant) {
        self.more = true;
        self.claim_after = Some(now + self.claim_backoff.fail());
        self.health.poll_failed();
        self.metrics.poll_failed();
        let text = chain(error);
        if self.claim_causes.is_news(error.kind(), &text) {
            say_poll_failed(error.kind(), &text);
        }
    }

    pub(super) fn claim_answered(&mut self) {
        self.claim_after = None;
        self.claim_causes.forget();
        let failures = self.claim_backoff.succeed();
        if failures > 0 {
            tracing::info!(failures, "{}", crate::telemetry::log_line::POLL_RECOVERED);
        }
        self.health.polled();
    }

    /// Registers an event as held, and names it.
    pub(super) fn hold(&mut self, make: impl FnOnce(HeldId) -> Held) -> HeldId {
        self.generation = self.generation.wrapping_add(1);
        let entry = self.held.vacant_entry();
        let id = HeldId::new(self.generation, entry.key());
        let held = make(id);
        self.held_bytes += held.bytes;
        entry.insert(held);
        id
    }

    /// An event, if it is still in this relay's hands.
    pub(super) fn held_mut(&mut self, id: HeldId) -> Option<&mut Held> {
        self.held.get_mut(id.index()).filter(|held| held.id == id)
    }

    /// Takes an event out of this relay's hands, if it is still in them.
    pub(super) fn take_held(&mut self, id: HeldId) -> Option<Held> {
        self.held_mut(id)?;
        let held = self.held.remove(id.index());
        self.held_bytes -= held.bytes;
        let others = held.run.as_ref().is_some_and(|run| run.take_one());
        self.behind -= usize::from(others);
        Some(held)
    }

    /// Takes in all results that workers have handed over.
    pub(super) fn collect(&mut self, now: Instant) {
        let mut finished = std::mem::take(&mut self.finished);
        self.pool.take_finished(&mut finished);
        let tried = finished
            .iter()
            .filter(|result| result.ended != Ended::NotTried)
            .count();
        self.pace.delivered(tried as u64, now);
        for result in finished.drain(..) {
            self.finish(result, now);
        }
        self.finished = finished;
        self.health.set_in_flight(self.held.len());
    }

    /// Waits for the next thing to happen, at the latest until the next time that something has to be done.
    pub(super) async fn next<S: Future<Output = ()>>(&mut self, stop: Pin<&mut S>) -> Occurrence {
        let alarm = self.next_alarm();
        let listening = self.wait.as_mut();
        tokio::select! {
            biased;
            () = stop => Occurrence::Stop,
            answer = answer(&mut self.leases.beat, "extend") => Occurrence::Extended(answer),
            (lane, answer) = self.settling.answer() => Occurrence::Settled(lane, answer),
            answer = answer(&mut self.claim, "claim") => Occurrence::Claimed(answer),
            answer = answer(&mut self.pausing.call, "paused") => Occurrence::Paused(answer),
            () = self.pool.results.notified() => Occurrence::Finished,
            () = maybe(listening) => {
                self.wait = None;
                Occurrence::Hint
            }
            () = sleep_until(alarm) => Occurrence::Time,
        }
    }

    fn next_alarm(&self) -> Option<Instant> {
        let idle = self.claim.is_none() && !self.stopping;
        let sweep = if self.held.is_empty() { None } else { self.sweep_at };
        let times = [
            self.settling.next_flush(),
            self.leases.next_beat(),
            self.claim_after.filter(|_| idle),
            self.reminders.next().filter(|_| !self.stopping),
            self.types.next_resume().filter(|_| !self.stopping),
            sweep,
        ];
        times.into_iter().flatten().min()
    }
}

async fn maybe<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
