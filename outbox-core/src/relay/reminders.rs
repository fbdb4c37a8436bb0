//! When events that this relay sent to wait become due. The source need not tell what the relay knows itself.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

/// Instants closer to each other than this are one.
const GRAIN: Duration = Duration::from_millis(10);

/// More are forgotten, the latest first: the poll timeout finds those events.
const REMINDERS_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Reminders(BTreeSet<Instant>);

impl Reminders {
    pub(super) fn add(&mut self, time: Instant) {
        // A reminder just after `time` serves it as well.
        if self.0.range(time..time + GRAIN).next().is_some() {
            return;
        }
        self.0.insert(time + GRAIN / 2);
        if self.0.len() > REMINDERS_MAX {
            self.0.pop_last();
        }
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.0.first().copied()
    }

    /// Forgets what is over; whether something was.
    pub(super) fn pass(&mut self, now: Instant) -> bool {
        let mut passed = false;
        while self.0.first().is_some_and(|time| *time <= now) {
            self.0.pop_first();
            passed = true;
        }
        passed
    }
}
