//! What must hold of every history.

use std::fmt;

use uuid::Uuid;

use super::faults::Faults;
use super::flow::others_flow;
use super::order::keys_are_in_order;
use super::record::{Ending, Record};
use super::story::{Delivery, Fate, Story, collect};

/// What was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// A committed event is handled, and ends with the status that it must have.
    NothingLost,
    /// What was rolled back, or never published, is neither stored nor handled.
    NothingInvented,
    /// A handler gets what was published, byte for byte.
    Unaltered,
    /// An event comes again only if a try failed, or its relay was hit by a fault before the outcome was recorded.
    DuplicatesHaveAReason,
    /// Once the store has confirmed a completion, the event never comes again.
    CompletedIsFinal,
    /// Of one key, no event starts before those before it are settled, and no two handlers run at a time.
    Order,
    /// While a key is busy, others are delivered.
    Flow,
    /// Only failed tries are charged.
    Charges,
}

/// One thing that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What was broken.
    pub rule: Rule,
    /// By which event.
    pub event: Uuid,
    /// How.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: event {}: {}", self.rule, self.event, self.text)
    }
}

/// Numbers of a history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Events that committed.
    pub committed: usize,
    /// Events that were rolled back.
    pub rolled_back: usize,
    /// Commits whose answer never came; some of them took place.
    pub unknown: usize,
    /// Handler starts.
    pub deliveries: usize,
    /// Deliveries that failed by themselves, as their script wants.
    pub failed: usize,
    /// Deliveries again of an event whose handler had finished, but whose outcome was not recorded.
    pub again_after_done: usize,
    /// Deliveries again of an event whose handler was cut off.
    pub again_after_cut: usize,
    /// Faults.
    pub faults: usize,
    /// Keys with events.
    pub keys: usize,
    /// Deliveries that kept their key busy for long while others waited.
    pub long_deliveries: usize,
    /// The longest time in milliseconds between a delivery that was cut off and the next of its event.
    pub longest_gap_ms: i64,
}

/// What the checker found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Verdict {
    /// Empty if everything held.
    pub violations: Vec<Violation>,
    /// Numbers.
    pub summary: Summary,
}

impl Verdict {
    pub(super) fn add(&mut self, rule: Rule, event: Uuid, text: impl Into<String>) {
        self.violations.push(Violation {
            rule,
            event,
            text: text.into(),
        });
    }
}

/// Judges a history whose faults are over and whose table was read at the end. Records are in the order of time.
#[must_use]
pub fn check(records: &[Record]) -> Verdict {
    let faults = Faults::collect(records);
    let stories = collect(records);
    let mut verdict = Verdict::default();
    verdict.summary.faults = faults.count();
    for (event, story) in &stories {
        count(&mut verdict.summary, story);
        ends_rightly(&mut verdict, *event, story);
        is_not_invented(&mut verdict, *event, story);
        is_unaltered(&mut verdict, *event, story);
        comes_again_with_reason(&mut verdict, *event, story, &faults);
        is_charged_rightly(&mut verdict, *event, story);
    }
    keys_are_in_order(&mut verdict, &stories, &faults, records);
    others_flow(&mut verdict, &stories, &faults);
    verdict
}

fn count(summary: &mut Summary, story: &Story) {
    match story.fate() {
        Fate::Committed => summary.committed += 1,
        Fate::RolledBack => summary.rolled_back += 1,
        Fate::Unknown => summary.unknown += 1,
    }
    summary.deliveries += story.deliveries.len();
    summary.failed += story
        .deliveries
        .iter()
        .filter(|one| matches!(one.end, Some((_, Ending::Failed))))
        .count();
}

fn ends_rightly(verdict: &mut Verdict, event: Uuid, story: &Story) {
    if !story.is_committed() {
        return;
    }
    let Some(row) = &story.row else {
        return verdict.add(Rule::NothingLost, event, "committed, but not in the table");
    };
    if row.status != story.ends {
        let text = format!("is {} at the end, must be {}", row.status, story.ends);
        return verdict.add(Rule::NothingLost, event, text);
    }
    if row.status == "completed" && !story.deliveries.iter().any(Delivery::is_done) {
        verdict.add(
            Rule::NothingLost,
            event,
            "completed, but no handler has finished it",
        );
    }
}

fn is_not_invented(verdict: &mut Verdict, event: Uuid, story: &Story) {
    if story.payload.is_none() {
        return verdict.add(Rule::NothingInvented, event, "nobody meant to publish it");
    }
    if story.is_committed() {
        return;
    }
    if story.row.is_some() {
        verdict.add(Rule::NothingInvented, event, "rolled back, but in the table");
    }
    if !story.deliveries.is_empty() {
        verdict.add(Rule::NothingInvented, event, "not committed, but delivered");
    }
}

fn is_unaltered(verdict: &mut Verdict, event: Uuid, story: &Story) {
    let Some(published) = &story.payload else { return };
    if let Some(other) = story.deliveries.iter().find(|one| one.payload != *published) {
        let text = format!("published {published}, delivered {}", other.payload);
        verdict.add(Rule::Unaltered, event, text);
    }
}

fn comes_again_with_reason(verdict: &mut Verdict, event: Uuid, story: &Story, faults: &Faults) {
    for pair in story.deliveries.windows(2) {
        let [before, again] = pair else { continue };
        let redriven = story
            .redriven
            .iter()
            .any(|at| (before.start..=again.start).contains(at));
        if redriven {
            continue;
        }
        if let Some(at) = story.completed.iter().find(|at| **at <= again.start) {
            let text = format!(
                "completed at {at}, delivered by {} at {}",
                again.process, again.start
            );
            verdict.add(Rule::CompletedIsFinal, event, text);
        }
        let faulted = faults.excuse(&before.process, before.start, again.start);
        match before.end {
            Some((end, Ending::Failed)) if end <= again.start => continue,
            Some((end, Ending::Done)) if end <= again.start => verdict.summary.again_after_done += 1,
            _ => {
                verdict.summary.again_after_cut += 1;
                let gap = (again.start - before.start) / 1_000;
                verdict.summary.longest_gap_ms = verdict.summary.longest_gap_ms.max(gap);
            }
        }
        // A relay that stops in good order cuts off what outlasts its grace, and hands it back.
        let handed_back = matches!(before.end, Some((end, Ending::CutOff)) if end <= again.start);
        if !faulted && !handed_back {
            let text = format!(
                "delivered by {} at {} ({:?}), and by {} at {} without a fault in between",
                before.process, before.start, before.end, again.process, again.start
            );
            verdict.add(Rule::DuplicatesHaveAReason, event, text);
        }
    }
}

fn is_charged_rightly(verdict: &mut Verdict, event: Uuid, story: &Story) {
    let Some(row) = &story.row else { return };
    let tries = story
        .deliveries
        .iter()
        .filter(|one| matches!(one.end, Some((_, Ending::Failed | Ending::CutOff))))
        .count();
    if usize::try_from(row.retry_count).is_ok_and(|charged| charged > tries) {
        let text = format!("{} tries are charged, {tries} have failed", row.retry_count);
        verdict.add(Rule::Charges, event, text);
    }
}
