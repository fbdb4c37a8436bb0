//! What follows the end of a delivery: its outcome goes to the source, its place to other work.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::{Engine, Held, SWEEP};
use super::lanes::LaneNumber;
use super::outcome::{Tried, TryResult, settle_outcome};
use super::settling::Unrecorded;
use super::slots::GivenUp;
use super::work::{Ended, Finished, HeldId};
use crate::telemetry::{OutcomeLabel, log_line};
use crate::{ClaimToken, Envelope, Outcome, Settled, Settlement, SourceError, SourceErrorKind};

/// Past its deadline and the grace to end, a delivery gets this much more before it counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(1);

impl Engine {
    /// Takes in one result of a worker.
    pub(super) fn finish(&mut self, result: Finished, now: Instant) {
        let Finished {
            item,
            outcome,
            ended,
            outage,
            leaves,
        } = result;
        let rules = &item.rules;
        match ended {
            Ended::Delivered(_) | Ended::Failed => self.types.answered(rules),
            Ended::Outage => self.types.outage(rules, outage.unwrap_or_default(), now),
            Ended::TimedOut | Ended::NotTried => {}
        }
        // Afterwards: whether there is a place depends on the breaker.
        if !leaves.is_empty() {
            let freed = self.types.leave(&leaves);
            self.pool.push(freed);
            self.more = true;
        }
        let Some(held) = self.take_held(item.held) else {
            self.forget_stuck(item.held);
            return;
        };
        let label = ended.label(&outcome);
        self.conclude(held, outcome, label, Some(item.delivery.envelope), now);
    }

    /// Sends an outcome on its way, unless the source has said that the claim is gone.
    fn conclude(
        &mut self,
        held: Held,
        outcome: Outcome,
        label: OutcomeLabel,
        envelope: Option<Arc<Envelope>>,
        now: Instant,
    ) {
        if held.lease.is_lost() {
            self.report.lost += 1;
            self.metrics.claims_lost(1);
            return;
        }
        if let Outcome::Failed { error, .. } = &outcome {
            tracing::warn!(event.id = %held.event, error, "{}", log_line::EVENT_FAILED);
        }
        let settlement = Settlement {
            token: held.lease.token,
            position: held.position,
            id: held.event,
            outcome,
        };
        let unrecorded = Unrecorded {
            settlement,
            lease: held.lease,
            run: held.run,
            label,
            envelope,
            unanswered: false,
        };
        self.settling.push(unrecorded, now);
    }

    /// Takes in the source's answer to settlements.
    pub(super) fn settled(&mut self, lane: LaneNumber, answer: Result<Settled, SourceError>, now: Instant) {
        let answer = self.settling.answered(lane, answer, now);
        let failures = self.settling.failures();
        self.health.set_settle_errors(failures);
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                let text = chain(&error);
                if self.settle_causes.is_news(error.kind(), &text) {
                    tracing::warn!(
                        error = text,
                        unrecorded = self.settling.len(),
                        "{}",
                        log_line::SETTLE_FAILED
                    );
                }
                return;
            }
        };
        if failures == 0 {
            self.settle_causes.forget();
        }
        if let Some((event, error)) = &answer.refused {
            tracing::error!(event.id = %event, error = chain(error), "{}", log_line::SETTLE_REFUSED);
        }
        // One look at the clock for all of them.
        let recorded_at = jiff::Timestamp::now();
        for outcome in &answer.recorded {
            outcome.lease.settle_one();
            self.count(outcome, recorded_at, now);
        }
        let mut lost = 0;
        for outcome in &answer.lost {
            outcome.lease.settle_one();
            // While the claim lasts nobody else can have ended it: the call whose answer was lost has recorded this. Only a
            // server that crashed may have forgotten the claim instead; the event comes again, then, and counts twice.
            if outcome.unanswered && outcome.lease.is_trusted(now) {
                self.count(outcome, recorded_at, now);
                continue;
            }
            lost += usize::from(!outcome.unanswered);
            if outcome.frees_key() {
                self.poll_again();
            }
        }
        if lost > 0 {
            self.report.lost += lost as u64;
            self.metrics.claims_lost(lost);
            tracing::warn!(events = lost, "{}", log_line::CLAIMS_LOST);
        }
    }

    fn count(&mut self, outcome: &Unrecorded, recorded_at: jiff::Timestamp, now: Instant) {
        let report = &mut self.report;
        match outcome.label {
            OutcomeLabel::Completed => report.completed += 1,
            OutcomeLabel::Unhandled => {
                report.completed += 1;
                report.unhandled += 1;
            }
            OutcomeLabel::Retry => report.retried += 1,
            OutcomeLabel::Failed => report.failed += 1,
            OutcomeLabel::Released => report.released += 1,
        }
        let envelope = outcome.envelope.as_deref();
        let event_type = envelope.map(|envelope| &envelope.event_type);
        self.metrics.settled(
            event_type,
            outcome.label,
            envelope.and_then(|envelope| lag(envelope, recorded_at)),
        );
        let frees_key = outcome.frees_key();
        match &outcome.settlement.outcome {
            Outcome::Retry { after, .. } | Outcome::Released { after, .. } if !after.is_zero() => {
                self.reminders.add(now + *after);
            }
            _ if frees_key => self.poll_again(),
            Outcome::Retry { .. } | Outcome::Released { .. } => self.poll_again(),
            Outcome::Completed | Outcome::Failed { .. } => {}
        }
    }

    /// Takes in the answer to a heartbeat.
    pub(super) fn extended(&mut self, answer: Result<Vec<ClaimToken>, SourceError>, now: Instant) {
        let lost = match self.leases.answered(answer, now) {
            Ok(lost) => lost,
            Err(error) => {
                tracing::warn!(error = chain(&error), "{}", log_line::EXTEND_FAILED);
                return;
            }
        };
        if lost.is_empty() {
            return;
        }
        let mut events = 0;
        for (_, held) in &self.held {
            if held.lease.is_lost() {
                held.cancelled.cancel();
                events += 1;
            }
        }
        tracing::warn!(claims = lost.len(), events, "{}", log_line::CLAIMS_LOST);
    }

    /// Looks for claims that can be believed in no longer, for deliveries that hang, and for a queue that stands still.
    pub(super) fn sweep_if_due(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|time| now < time) {
            return;
        }
        self.sweep_at = (!self.held.is_empty()).then_some(now + SWEEP);
        for (_, held) in &self.held {
            if !held.lease.is_trusted(now) && !held.cancelled.is_cancelled() {
                held.cancelled.cancel();
            }
        }
        // ORDER: first what has ended. A process that was suspended finds results and their deadlines in one moment.
        self.collect(now);
        for given_up in self.pool.slots.give_up(now, STUCK_AFTER) {
            self.given_up(given_up, now);
        }
        self.taken_seen = self.pool.push_on(self.taken_seen);
        self.ask_paused_if_due(now);
    }

    /// The delivery does not even return to be cancelled. Its event is tried again, its place is given to a stand-in,
    /// and whatever it says later comes too late. The rest of its run goes back: it must not go on before that try.
    fn given_up(&mut self, given_up: GivenUp, now: Instant) {
        let Some(held) = self.take_held(given_up.held) else {
            return;
        };
        tracing::error!(event.id = %held.event, "{}", log_line::HANDLER_STUCK);
        held.cancelled.cancel();
        let freed = self.types.leave(&given_up.leaves);
        self.pool.push(freed);
        self.more = true;
        let (outcome, envelope) = held.stuck_outcome();
        self.stuck.push(given_up.held);
        self.stuck_changed();
        let label = Ended::Failed.label(&outcome);
        self.conclude(held, outcome, label, Some(envelope), now);
        for id in given_up.run {
            self.hand_back(id, now);
        }
    }

    /// Hands an event back whose delivery has not ended.
    pub(super) fn hand_back(&mut self, id: HeldId, now: Instant) {
        let Some(held) = self.take_held(id) else { return };
        held.cancelled.cancel();
        let outcome = Outcome::Released {
            after: Duration::ZERO,
            done: held.done.as_deref().unwrap_or_default().to_vec(),
        };
        let envelope = Arc::clone(&held.envelope);
        self.conclude(held, outcome, OutcomeLabel::Released, Some(envelope), now);
    }

    fn forget_stuck(&mut self, id: HeldId) {
        let before = self.stuck.len();
        self.stuck.retain(|stuck| *stuck != id);
        if self.stuck.len() < before {
            self.stuck_changed();
        }
    }

    fn stuck_changed(&mut self) {
        self.health.set_stuck(self.stuck.len());
        let concurrency = self.settings.concurrency.get() as usize;
        self.pool.stand_in(self.stuck.len(), concurrency);
    }
}

impl Held {
    fn stuck_outcome(&self) -> (Outcome, Arc<Envelope>) {
        let tried = Tried {
            attempt: self.attempt,
            outages: 0,
            done: self.done.as_deref().unwrap_or_default(),
        };
        let result = TryResult::TimedOut {
            limit: self.rules.timeout,
            done: None,
        };
        let rules = (&self.rules.retry, self.rules.key);
        (
            settle_outcome(result, &tried, rules, fastrand::f64()),
            Arc::clone(&self.envelope),
        )
    }
}

/// The time between an event's publishing and the recording of its outcome; none if the clocks disagree.
fn lag(envelope: &Envelope, recorded_at: jiff::Timestamp) -> Option<Duration> {
    Duration::try_from(recorded_at.duration_since(envelope.created_at)).ok()
}

/// Said at a level by what helps: waiting, or only a change of set-up.
pub(super) fn say_poll_failed(kind: SourceErrorKind, error: &str) {
    match kind {
        SourceErrorKind::Misconfigured => tracing::error!(error, "{}", log_line::POLL_FAILED),
        SourceErrorKind::Unavailable | SourceErrorKind::Refused => {
            tracing::warn!(error, "{}", log_line::POLL_FAILED);
        }
    }
}

pub(super) fn chain(error: &SourceError) -> String {
    super::error_text::error_text(error, 500)
}
