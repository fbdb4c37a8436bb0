//! While one key is busy, the others flow.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::checker::{Rule, Verdict};
use super::faults::Faults;
use super::record::{Ending, Policy};
use super::story::Story;

/// A delivery that takes this long keeps its key busy for long.
const LONG_US: i64 = 1_000_000;
/// So many other keys have to wait when it begins: with less, all of them may wait for retries, or be busy themselves.
const WAITING: usize = 10;

/// A relay that was killed may have had all other keys in its hands: they wait for the end of its leases.
const AFTER_FAULT_US: i64 = 5_000_000;

/// During every long delivery of a key at least one event of another key is delivered, if many keys wait.
pub(super) fn others_flow(verdict: &mut Verdict, stories: &BTreeMap<Uuid, Story>, faults: &Faults) {
    let done = |story: &Story| {
        let ends = story.deliveries.iter().filter_map(|one| one.end);
        ends.filter(|(_, how)| *how == Ending::Done)
            .map(|(end, _)| end)
            .min()
    };
    let all: Vec<(&Story, i64, i64)> = stories
        .values()
        .filter_map(|story| Some((story, story.committed_at?, done(story).unwrap_or(i64::MAX))))
        .collect();
    for (event, story) in stories.iter().filter(|(_, story)| story.key.is_some()) {
        for delivery in &story.deliveries {
            let Some((end, _)) = delivery.end.filter(|(end, _)| end - delivery.start >= LONG_US) else {
                continue;
            };
            let others = || all.iter().filter(|(other, ..)| other.key != story.key);
            // A parked key may wait for an operator.
            let waiting = others().filter(|(other, committed, done)| {
                other.policy == Policy::GoOn && *committed < delivery.start && *done > delivery.start
            });
            let waiting: BTreeSet<&str> = waiting.filter_map(|(other, ..)| other.key.as_deref()).collect();
            if waiting.len() < WAITING || faults.any(delivery.start - AFTER_FAULT_US, end) {
                continue;
            }
            verdict.summary.long_deliveries += 1;
            if !others().any(|(.., done)| (delivery.start..end).contains(done)) {
                let text = format!(
                    "from {} to {end} no event of another key was handled",
                    delivery.start
                );
                verdict.add(Rule::Flow, *event, text);
            }
        }
    }
}
