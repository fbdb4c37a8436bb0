//! Order per key: who may start when.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::checker::{Rule, Verdict};
use super::faults::Faults;
use super::record::{Ending, Policy, Record, What};
use super::story::{Delivery, Story};
use crate::script::{Act, Scripted};

/// An event of a key, in publish order.
type Event<'a> = (Uuid, &'a Story);

/// No event starts while an earlier one of its key stands in its way, and no two deliveries of a key overlap.
pub(super) fn keys_are_in_order(
    verdict: &mut Verdict,
    stories: &BTreeMap<Uuid, Story>,
    faults: &Faults,
    records: &[Record],
) {
    let mut keys: BTreeMap<&str, Vec<(i64, Event<'_>)>> = BTreeMap::new();
    for (event, story) in stories {
        if let (Some(key), Some(row)) = (&story.key, &story.row) {
            keys.entry(key).or_default().push((row.seq, (*event, story)));
        }
    }
    verdict.summary.keys = keys.len();
    for (key, mut events) in keys {
        events.sort_by_key(|(seq, _)| *seq);
        let events: Vec<Event<'_>> = events.into_iter().map(|(_, event)| event).collect();
        let resumed = |record: &&Record| matches!(&record.what, What::Resumed { key: of } if of == key);
        let resumed: Vec<i64> = records
            .iter()
            .filter(resumed)
            .map(|record| record.at_us)
            .collect();
        nobody_is_overtaken(verdict, &events, &resumed, faults);
        one_at_a_time(verdict, &events, faults);
    }
}

fn nobody_is_overtaken(verdict: &mut Verdict, events: &[Event<'_>], resumed: &[i64], faults: &Faults) {
    for (n, (earlier, story)) in events.iter().enumerate() {
        let windows = windows(story, resumed);
        for (later, follower) in events.iter().skip(n + 1) {
            let overtakes = |start: i64| {
                windows
                    .iter()
                    .find(|window| window.from < start && start < window.to)
            };
            let hit = follower.deliveries.iter().find_map(|one| {
                let window = overtakes(one.start)?;
                let excused = !window.first && faults.excuse(&one.process, one.start, one.start);
                (!excused).then_some((one, window))
            });
            if let Some((one, window)) = hit {
                let text = format!(
                    "started by {} at {} although {earlier} stood in its way from {} to {}",
                    one.process, one.start, window.from, window.to
                );
                verdict.add(Rule::Order, *later, text);
            }
        }
    }
}

/// A time in which no later event of the key may start.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: i64,
    to: i64,
    /// It lasts from the beginning: no claim of a later event can have been made before it.
    first: bool,
}

fn windows(story: &Story, resumed: &[i64]) -> Vec<Window> {
    let tried = |from: i64| {
        story
            .deliveries
            .iter()
            .map(|one| one.start)
            .find(|start| *start >= from)
    };
    let mut windows = Vec::new();
    let first = match story.delayed {
        false => Some(i64::MIN),
        // Before it was tried it may not have been due.
        true => tried(i64::MIN),
    };
    let end = end_of_cycle(story, i64::MIN);
    if let Some(from) = first {
        windows.push(Window {
            from,
            to: end,
            first: !story.delayed,
        });
    }
    // A later event may be under way when one is redriven; from its next try on it is in its place again.
    for at in &story.redriven {
        if let Some(from) = tried(*at) {
            let to = end_of_cycle(story, *at);
            windows.push(Window {
                from,
                to,
                first: false,
            });
        }
    }
    if story.policy == Policy::Stop
        && let Some(from) = death(story, i64::MIN)
    {
        let by_hand = resumed.iter().chain(&story.redriven).chain(&story.discarded);
        let to = by_hand
            .copied()
            .filter(|at| *at >= from)
            .min()
            .unwrap_or(i64::MAX);
        windows.push(Window {
            from,
            to,
            first: false,
        });
    }
    windows
}

/// When the event stops to stand in the way that was published, or redriven, at `from`.
fn end_of_cycle(story: &Story, from: i64) -> i64 {
    // The first of them: a relay that was held still may end a delivery long after another one has.
    let done = ends(story, Ending::Done).filter(|end| *end >= from).min();
    let death = match story.policy {
        Policy::GoOn | Policy::Stop => death(story, from),
        // Its followers wait for what an operator does with it.
        Policy::Park => story.discarded.iter().copied().find(|at| *at >= from),
    };
    // What ends as failed without a try, because it killed its relays, ends nobody knows when.
    let unknown =
        (story.ends == "failed" && ends(story, Ending::Failed).next().is_none()).then_some(i64::MIN);
    [done, death, unknown]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(i64::MAX)
}

/// The end of the try after which it was given up, in the cycle that begins at `from`.
fn death(story: &Story, from: i64) -> Option<i64> {
    let next_cycle = story.redriven.iter().copied().find(|at| *at > from);
    if story.ends != "failed" && next_cycle.is_none() {
        return None;
    }
    let until = next_cycle.unwrap_or(i64::MAX);
    let failed = ends(story, Ending::Failed).filter(|end| (from..until).contains(end));
    // A reject is final at once: what follows in its run goes on, whether or not its relay lives to record it.
    if is_rejected(story) {
        failed.min()
    } else {
        failed.max()
    }
}

fn is_rejected(story: &Story) -> bool {
    let script = |payload: &String| serde_json::from_str::<Scripted>(payload).ok();
    story
        .payload
        .as_ref()
        .and_then(script)
        .is_some_and(|script| script.act == Act::Reject)
}

fn ends(story: &Story, how: Ending) -> impl Iterator<Item = i64> {
    let of_kind = move |one: &Delivery| one.end.filter(|(_, ending)| *ending == how).map(|(end, _)| end);
    story.deliveries.iter().filter_map(of_kind)
}

/// Deliveries of one key overlap only if something was wrong with one of their relays.
fn one_at_a_time(verdict: &mut Verdict, events: &[Event<'_>], faults: &Faults) {
    let mut all: Vec<(Uuid, &Delivery)> = events
        .iter()
        .flat_map(|(event, story)| story.deliveries.iter().map(|one| (*event, one)))
        .collect();
    all.sort_by_key(|(_, one)| one.start);
    let mut open: Vec<(Uuid, &Delivery)> = Vec::new();
    for (event, one) in all {
        open.retain(|(_, before)| before.end.is_none_or(|(end, _)| end > one.start));
        let beside = open.iter().find(|(_, before)| {
            !faults.excuse(&before.process, before.start, one.start)
                && !faults.excuse(&one.process, one.start, one.start)
        });
        if let Some((other, before)) = beside {
            let text = format!(
                "started by {} at {} beside {other}, which {} had begun at {}",
                one.process, one.start, before.process, before.start
            );
            verdict.add(Rule::Order, event, text);
        }
        open.push((event, one));
    }
}
