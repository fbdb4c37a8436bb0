//! Outcomes on their way to the source: gathered for a moment, sent together, kept until they are recorded.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::job::{Job, Jobs};
use super::lease::Lease;
use crate::telemetry::OutcomeLabel;
use crate::{Envelope, Settled, Settlement, SourceError};

/// How long the first outcome waits for others.
const GATHER: Duration = Duration::from_millis(2);

/// An outcome, and what is needed once it is recorded.
#[derive(Debug)]
pub(super) struct Unrecorded {
    pub(super) settlement: Settlement,
    pub(super) lease: Arc<Lease>,
    pub(super) label: OutcomeLabel,
    /// Absent for an event that cannot be decoded.
    pub(super) envelope: Option<Arc<Envelope>>,
}

/// What became of the outcomes of one call.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) recorded: Vec<Unrecorded>,
    pub(super) lost: Vec<Unrecorded>,
    /// An earlier call for some of these ended without an answer: what is lost may have been recorded then.
    pub(super) unsure: bool,
}

#[derive(Debug)]
pub(super) struct Settling {
    batch: usize,
    waiting: VecDeque<Unrecorded>,
    sent: Vec<Unrecorded>,
    pub(super) call: Option<Job<Settled>>,
    flush_at: Option<Instant>,
    retry_at: Option<Instant>,
    unsure: bool,
    backoff: Backoff,
}

impl Settling {
    pub(super) fn new(batch: usize) -> Self {
        Self {
            batch,
            waiting: VecDeque::new(),
            sent: Vec::new(),
            call: None,
            flush_at: None,
            retry_at: None,
            unsure: false,
            backoff: Backoff::default(),
        }
    }

    pub(super) fn push(&mut self, outcome: Unrecorded, now: Instant) {
        self.waiting.push_back(outcome);
        self.flush_at.get_or_insert(now + GATHER);
    }

    /// Outcomes that are not recorded yet.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.sent.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// When to look again.
    pub(super) fn next_flush(&self) -> Option<Instant> {
        if self.call.is_some() || self.waiting.is_empty() {
            return None;
        }
        self.retry_at.or(self.flush_at)
    }

    /// Sends what has gathered, if there is enough of it, or `hurry` says that nothing more is to come.
    pub(super) fn flush_if_due(&mut self, now: Instant, hurry: bool, jobs: &Jobs) {
        if self.call.is_some() || self.waiting.is_empty() || self.retry_at.is_some_and(|time| now < time) {
            return;
        }
        let gathered = self.waiting.len() >= self.batch || self.flush_at.is_some_and(|time| time <= now);
        if !gathered && !hurry {
            return;
        }
        let count = self.waiting.len().min(self.batch.saturating_mul(2));
        self.sent = self.waiting.drain(..count).collect();
        self.flush_at = (!self.waiting.is_empty()).then_some(now);
        let settlements = self
            .sent
            .iter()
            .map(|outcome| outcome.settlement.clone())
            .collect();
        self.call = Some(jobs.settle(settlements));
    }

    /// Takes in the source's answer. After an error everything is kept, and `Err` holds the number of errors in a row.
    pub(super) fn answered(
        &mut self,
        answer: Result<Settled, SourceError>,
        now: Instant,
    ) -> Result<Recorded, (SourceError, u32)> {
        let sent = std::mem::take(&mut self.sent);
        let settled = match answer {
            Ok(settled) => settled,
            Err(error) => {
                // ORDER: what was sent first stays first. Of one key, an earlier outcome is recorded no later.
                for outcome in sent.into_iter().rev() {
                    self.waiting.push_front(outcome);
                }
                self.unsure = true;
                self.flush_at = Some(now);
                self.retry_at = Some(now + self.backoff.fail());
                return Err((error, self.backoff.failures()));
            }
        };
        self.retry_at = None;
        self.backoff.succeed();
        let unsure = std::mem::take(&mut self.unsure);
        let gone: HashSet<_> = settled.lost.into_iter().collect();
        let is_lost = |outcome: &Unrecorded| {
            !gone.is_empty() && gone.contains(&(outcome.settlement.token, outcome.settlement.position))
        };
        let (lost, recorded) = sent.into_iter().partition(is_lost);
        Ok(Recorded {
            recorded,
            lost,
            unsure,
        })
    }
}
