//! The checker: what is on the topic against what was completed.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use super::cluster::log;
use super::event::Id;
use super::table::Table;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// First occurrences behind a later event of their key.
    pub(crate) inversions: usize,
    /// Completed, and not on the topic.
    pub(crate) lost: usize,
    /// Records beyond the first of their event. Allowed.
    pub(crate) duplicates: usize,
    /// The first inversion.
    pub(crate) first: Option<Id>,
}

impl Verdict {
    pub(crate) fn assert_sound(&self, what: &str) {
        assert_eq!((self.inversions, self.lost), (0, 0), "{what}: {self:?}");
    }
}

/// `log`: the topic, partition by partition. `completed`: what the relay has marked so.
pub(crate) fn judge(log: &[Vec<Id>], completed: &HashSet<Id>) -> Verdict {
    let (mut seen, mut highest) = (HashSet::new(), HashMap::<u32, u64>::new());
    let mut verdict = Verdict::default();
    for id in log.iter().flatten() {
        if !seen.insert(*id) {
            verdict.duplicates += 1;
            continue;
        }
        let highest = highest.entry(id.key).or_insert(id.n);
        if id.n < *highest {
            verdict.inversions += 1;
            verdict.first.get_or_insert(*id);
        }
        *highest = id.n.max(*highest);
    }
    verdict.lost = completed.difference(&seen).count();
    verdict
}

/// So many events, all of them delivered in order, and nobody charged.
pub(crate) async fn assert_delivered(
    what: &str,
    (bootstrap, topic): (&str, &str),
    table: &Mutex<Table>,
    count: usize,
) {
    let (completed, dead, attempts) = {
        let table = table.lock().unwrap();
        (table.completed(), table.dead().len(), table.attempts())
    };
    let verdict = judge(&log(bootstrap, topic).await, &completed);
    println!("{what}: {verdict:?}");
    verdict.assert_sound(what);
    assert_eq!((completed.len(), dead, attempts), (count, 0, 0), "{what}");
}
