//! Two calls that settle may be under way at a time: while the store writes one to its disk, it can work on the other.
//!
//! All outcomes of a claim go the same way. So those of one ordering key are recorded in their order, since a key is in one
//! claim at a time; no two calls wait for one lease; and a claim that is completed whole is mostly recorded by one call.

use tokio::time::Instant;

use super::job::{Jobs, answer};
use super::settling::{Lane, Recorded, Unrecorded};
use crate::{Settled, SourceError};

/// Which call an answer is to.
pub(super) type LaneNumber = usize;

#[derive(Debug)]
pub(super) struct Lanes([Lane; 2]);

impl Lanes {
    /// Of calls of at most twice `batch` outcomes.
    pub(super) fn new(batch: usize) -> Self {
        Self([Lane::new(batch), Lane::new(batch)])
    }

    pub(super) fn push(&mut self, outcome: Unrecorded, now: Instant) {
        let odd = outcome.settlement.token.number() & 1 == 1;
        self.0[usize::from(odd)].push(outcome, now);
    }

    /// Whether there is a backlog.
    pub(super) fn expect_many(&mut self, many: bool) {
        self.0.iter_mut().for_each(|lane| lane.expect_many(many));
    }

    /// Outcomes that are not recorded yet.
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(Lane::len).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The calls in a row that the source did not answer, of the lane that has more of them.
    pub(super) fn failures(&self) -> u32 {
        self.0.iter().map(Lane::failures).max().unwrap_or_default()
    }

    /// When to look again.
    pub(super) fn next_flush(&self) -> Option<Instant> {
        self.0.iter().filter_map(Lane::next_flush).min()
    }

    /// Sends what has gathered, if there is enough of it, or `hurry` says that nothing more is to come.
    pub(super) fn flush_if_due(&mut self, now: Instant, hurry: bool, jobs: &Jobs) {
        for lane in &mut self.0 {
            lane.flush_if_due(now, hurry, jobs);
        }
    }

    /// What waits after a failure is sent at once, and again soon: there is not much time left.
    pub(super) fn hurry(&mut self) {
        self.0.iter_mut().for_each(Lane::hurry);
    }

    /// The answer to a call, if one is under way; else never.
    ///
    /// # Cancel safety
    /// The calls go on, and can be asked again.
    pub(super) async fn answer(&mut self) -> (LaneNumber, Result<Settled, SourceError>) {
        let [even, odd] = &mut self.0;
        tokio::select! {
            settled = answer(&mut even.call, "settle") => (0, settled),
            settled = answer(&mut odd.call, "settle") => (1, settled),
        }
    }

    /// Takes in the source's answer. After an error everything is kept.
    pub(super) fn answered(
        &mut self,
        lane: LaneNumber,
        answer: Result<Settled, SourceError>,
        now: Instant,
    ) -> Result<Recorded, SourceError> {
        self.0[lane].answered(answer, now)
    }
}
