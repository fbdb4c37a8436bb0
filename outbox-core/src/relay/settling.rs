//! Outcomes on their way to the source: gathered for a moment, sent together, kept until they are recorded. One call at a
//! time; see `lanes.rs` for how two can be under way.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::Backoff;
use super::job::{Job, Jobs};
use super::lease::Lease;
use super::run::Run;
use crate::telemetry::OutcomeLabel;
use crate::{Envelope, EventId, Outcome, Settled, Settlement, SourceError, SourceErrorKind};

/// How long the first outcome waits for others: not long, since a settlement frees a key and a place.
const GATHER: Duration = Duration::from_millis(2);
/// And while there is a backlog, where nobody waits for the one: fewer and larger calls cost the source less.
const GATHER_MANY: Duration = Duration::from_millis(10);

/// An outcome, and what is needed once it is recorded.
#[derive(Debug)]
pub(super) struct Unrecorded {
    pub(super) settlement: Settlement,
    pub(super) lease: Arc<Lease>,
    pub(super) run: Option<Arc<Run>>,
    pub(super) label: OutcomeLabel,
    /// Absent for an event that cannot be decoded.
    pub(super) envelope: Option<Arc<Envelope>>,
    /// A call with it ended without an answer: what is lost to the next one may have been recorded then.
    pub(super) unanswered: bool,
}

impl Unrecorded {
    /// The source has answered for it; whether the next event of its key may be due now. To be asked once.
    pub(super) fn frees_key(&self) -> bool {
        // Of an event that cannot be decoded nobody knows whether it has one.
        let envelope = self.envelope.as_ref();
        let keyed = envelope.is_none_or(|envelope| envelope.ordering_key.is_some());
        keyed && self.run.as_ref().is_none_or(|run| run.record_one())
    }
}

/// What became of the outcomes of one call.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) recorded: Vec<Unrecorded>,
    pub(super) lost: Vec<Unrecorded>,
    /// An outcome that the source will not hold as it is.
    pub(super) refused: Option<(EventId, SourceError)>,
}

/// A queue of outcomes with one call at a time.
#[derive(Debug)]
pub(super) struct Lane {
    /// The most outcomes of a call.
    batch: usize,
    /// The most of the next call: fewer while it is sought which one the source refuses.
    most: usize,
    waiting: VecDeque<Unrecorded>,
    sent: Vec<Unrecorded>,
    pub(super) call: Option<Job<Settled>>,
    gather: Duration,
    flush_at: Option<Instant>,
    retry_at: Option<Instant>,
    backoff: Backoff,
}

impl Lane {
    pub(super) fn new(batch: usize) -> Self {
        Self {
            batch: batch.saturating_mul(2),
            most: batch.saturating_mul(2),
            waiting: VecDeque::new(),
            sent: Vec::new(),
            call: None,
            gather: GATHER,
            flush_at: None,
            retry_at: None,
            backoff: Backoff::default(),
        }
    }

    pub(super) fn push(&mut self, outcome: Unrecorded, now: Instant) {
        self.waiting.push_back(outcome);
        self.flush_at.get_or_insert(now + self.gather);
    }

    /// Whether there is a backlog.
    pub(super) fn expect_many(&mut self, many: bool) {
        self.gather = if many { GATHER_MANY } else { GATHER };
    }

    /// Outcomes that are not recorded yet.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.sent.len()
    }

    /// Calls in a row that the source did not answer.
    pub(super) fn failures(&self) -> u32 {
        self.backoff.failures()
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
        let gathered = self.waiting.len() >= self.batch / 2 || self.flush_at.is_some_and(|time| time <= now);
        if !gathered && !hurry {
            return;
        }
        let count = self.waiting.len().min(self.most);
        self.sent = self.waiting.drain(..count).collect();
        self.flush_at = (!self.waiting.is_empty()).then_some(now);
        let settlements = self
            .sent
            .iter()
            .map(|outcome| outcome.settlement.clone())
            .collect();
        self.call = Some(jobs.settle(settlements));
    }

    /// What waits after a failure is sent at once, and again soon: there is not much time left.
    pub(super) fn hurry(&mut self) {
        self.retry_at = None;
        self.backoff = Backoff::default();
    }

    /// Takes in the source's answer. After an error everything is kept.
    pub(super) fn answered(
        &mut self,
        answer: Result<Settled, SourceError>,
        now: Instant,
    ) -> Result<Recorded, SourceError> {
        let mut sent = std::mem::take(&mut self.sent);
        let settled = match answer {
            Ok(settled) => settled,
            Err(error) if error.kind() == SourceErrorKind::Refused => {
                self.retry_at = None;
                self.backoff.succeed();
                return Ok(self.refused(sent, error, now));
            }
            Err(error) => {
                for outcome in &mut sent {
                    outcome.unanswered = true;
                }
                self.put_back(sent);
                self.flush_at = Some(now);
                self.retry_at = Some(now + self.backoff.fail());
                return Err(error);
            }
        };
        self.retry_at = None;
        self.backoff.succeed();
        self.most = self.most.saturating_mul(2).min(self.batch);
        let gone: HashSet<_> = settled.lost.into_iter().collect();
        let is_lost = |outcome: &Unrecorded| {
            !gone.is_empty() && gone.contains(&(outcome.settlement.token, outcome.settlement.position))
        };
        let (lost, recorded) = sent.into_iter().partition(is_lost);
        Ok(Recorded {
            recorded,
            lost,
            refused: None,
        })
    }

    fn put_back(&mut self, sent: Vec<Unrecorded>) {
        // ORDER: what was sent first stays first. Of one key, an earlier outcome is recorded no later.
        for outcome in sent.into_iter().rev() {
            self.waiting.push_front(outcome);
        }
    }

    /// One of these is to blame. Of several, half is sent next; one alone goes again in plain ASCII, and if it was that
    /// already, it is given up: its claim ends, and the event comes again.
    fn refused(&mut self, mut sent: Vec<Unrecorded>, error: SourceError, now: Instant) -> Recorded {
        let (mut lost, mut refused) = (Vec::new(), None);
        if let [outcome] = &mut sent[..] {
            refused = Some((outcome.settlement.id, error));
            if !make_plain(&mut outcome.settlement.outcome) {
                // It was refused now, so no earlier call without an answer recorded it.
                outcome.unanswered = false;
                lost = std::mem::take(&mut sent);
            }
        }
        self.most = (sent.len() / 2).max(1);
        self.put_back(sent);
        self.flush_at = (!self.waiting.is_empty()).then_some(now);
        Recorded {
            recorded: Vec::new(),
            lost,
            refused,
        }
    }
}

/// Replaces what not every store can hold in an outcome's texts; whether there was anything to replace.
fn make_plain(outcome: &mut Outcome) -> bool {
    let (error, done) = match outcome {
        Outcome::Retry { error, done, .. } | Outcome::Failed { error, done, .. } => (Some(error), done),
        Outcome::Released { done, .. } => (None, done),
        Outcome::Completed => return false,
    };
    let mut replaced = false;
    if let Some(error) = error.filter(|error| !error.is_ascii()) {
        *error = plain(&*error);
        replaced = true;
    }
    for part in done {
        // Only the reason of a refusal: by another name the part would run again.
        let reason = part.reason().filter(|reason| !reason.is_ascii()).map(plain);
        let because = reason.and_then(|reason| part.with_reason(&reason));
        if let Some(because) = because {
            *part = because;
            replaced = true;
        }
    }
    replaced
}

fn plain(text: impl AsRef<str>) -> String {
    let replace = |c: char| if c.is_ascii() { c } else { '?' };
    text.as_ref().chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PartName;

    #[test]
    fn the_reasons_of_refusals_are_made_plain_too_and_names_stay() {
        let refused = PartName::new("büro").unwrap().refusal_because("no 🦀").unwrap();
        let done = vec![PartName::new("größe").unwrap(), refused];
        let after = Duration::ZERO;
        let released = Outcome::Released {
            after,
            done: done.clone(),
        };
        let retry = Outcome::Retry {
            after,
            error: "plain already".to_owned(),
            done,
        };

        for mut outcome in [released, retry] {
            assert!(make_plain(&mut outcome), "there was something to replace");
            let (Outcome::Released { done, .. } | Outcome::Retry { done, .. }) = &outcome else {
                panic!("another outcome");
            };
            assert_eq!(done[0].as_str(), "größe");
            assert_eq!(
                (done[1].refused(), done[1].reason()),
                (Some("büro"), Some("no ?"))
            );
            assert!(!make_plain(&mut outcome), "it was replaced already");
        }
    }
}
