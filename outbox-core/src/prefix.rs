//! Which events of a log are finished without a gap.

use std::collections::VecDeque;

use crate::Position;

/// Tracks the longest finished prefix of events that are begun in order and finish in any.
///
/// A log has one number per reader: everything before it is done. Events are delivered concurrently, so that number may
/// only pass an event when that event *and all before it* have finished; else a crash would skip the unfinished ones.
/// Positions may have gaps, as Kafka's offsets do.
///
/// ```
/// use outbox_core::{Position, PrefixTracker};
///
/// let mut tracker = PrefixTracker::new();
/// for position in [10, 11, 13] {
///     tracker.begin(Position(position));
/// }
/// tracker.finish(Position(11));
/// assert_eq!(tracker.finished_up_to(), None); // 10 is not finished
/// tracker.finish(Position(10));
/// assert_eq!(tracker.finished_up_to(), Some(Position(11)));
/// ```
#[derive(Debug, Clone, Default)]
pub struct PrefixTracker {
    /// Begun and beyond the prefix, in ascending order; whether each has finished.
    open: VecDeque<(Position, bool)>,
    last_begun: Option<Position>,
    finished_up_to: Option<Position>,
}

impl PrefixTracker {
    /// Nothing begun, nothing finished.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes that an event was begun. Changes nothing, and returns `false`, unless it comes after all begun before.
    pub fn begin(&mut self, position: Position) -> bool {
        if self.last_begun.is_some_and(|last| position <= last) {
            return false;
        }
        self.last_begun = Some(position);
        self.open.push_back((position, false));
        true
    }

    /// Notes that an event has finished; whether the prefix has grown by it.
    ///
    /// Changes nothing for an event that was not begun, or has finished before.
    pub fn finish(&mut self, position: Position) -> bool {
        let Ok(index) = self
            .open
            .binary_search_by_key(&position, |(position, _)| *position)
        else {
            return false;
        };
        if let Some((_, finished)) = self.open.get_mut(index) {
            *finished = true;
        }
        let before = self.open.len();
        while let Some(&(position, true)) = self.open.front() {
            self.open.pop_front();
            self.finished_up_to = Some(position);
        }
        self.open.len() < before
    }

    /// The last event of the finished prefix: it and all begun before it have finished.
    #[must_use]
    pub fn finished_up_to(&self) -> Option<Position> {
        self.finished_up_to
    }

    /// How many begun events are beyond the prefix. Bound it, or one event that never finishes makes this grow.
    #[must_use]
    pub fn beyond(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The prefix is what a plain look over all events says, after every step.
        #[test]
        fn the_prefix_never_passes_an_unfinished_event(
            gaps in prop::collection::vec(1_i64..4, 1..60),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..120),
        ) {
            let mut tracker = PrefixTracker::new();
            let positions: Vec<i64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            for position in &positions {
                prop_assert!(tracker.begin(Position(*position)));
                prop_assert!(!tracker.begin(Position(*position)));
            }
            let mut finished = vec![false; positions.len()];

            for index in order {
                let index = index.index(positions.len());
                let before = tracker.finished_up_to();
                let grown = tracker.finish(Position(positions[index]));
                finished[index] = true;

                let count = finished.iter().take_while(|finished| **finished).count();
                let expected = count.checked_sub(1).map(|last| Position(positions[last]));
                prop_assert_eq!(tracker.finished_up_to(), expected);
                prop_assert_eq!(grown, before != expected);
                prop_assert_eq!(tracker.beyond(), positions.len() - count);
            }
        }
    }

    #[test]
    fn what_was_never_begun_changes_nothing() {
        let mut tracker = PrefixTracker::new();

        assert!(!tracker.finish(Position(7)));

        assert_eq!(tracker.finished_up_to(), None);
    }
}
