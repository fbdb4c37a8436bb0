//! What each worker is doing, for the loop to see which delivery hangs and to give up on it.
//!
//! Whether a delivery has ended or was given up on is decided under one lock, once: a result that comes after that is
//! late, and the work that it belongs to is over.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::work::{HeldId, Items, Work};
use crate::EventType;

pub(super) struct Slots(Box<[Slot]>);

/// Alone on its cache line.
#[repr(align(64))]
#[derive(Default)]
struct Slot(Mutex<Doing>);

/// What one worker is doing.
#[derive(Default)]
struct Doing {
    /// What is being delivered, and when that must be over.
    delivery: Option<(HeldId, Instant)>,
    /// Nobody waits for the delivery any more, nor for the rest of its work.
    given_up: bool,
    /// All events of its run; none for a lone event.
    run: Vec<HeldId>,
    /// Event types with a limit of their own in which the work has a place.
    limited: Vec<EventType>,
}

/// A delivery that was given up on, and what went down with it.
#[derive(Debug)]
pub(super) struct GivenUp {
    pub(super) held: HeldId,
    /// The events of its run, those that have ended among them.
    pub(super) run: Vec<HeldId>,
    /// The places that its work gives back.
    pub(super) leaves: Vec<EventType>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| Slot::default()).collect())
    }

    fn doing(&self, slot: usize) -> Option<MutexGuard<'_, Doing>> {
        self.0.get(slot).map(Slot::lock)
    }

    /// Notes what a worker takes on, and keeps its places.
    pub(super) fn take_on(&self, slot: usize, work: Work) -> Items {
        if let Some(mut doing) = self.doing(slot) {
            *doing = Doing {
                limited: work.limited,
                run: match &work.items {
                    Items::One(_) => Vec::new(),
                    Items::Run(run) => run.iter().map(|item| item.held).collect(),
                },
                ..Doing::default()
            };
        }
        work.items
    }

    /// Notes what a worker begins, and when it must be over.
    pub(super) fn begin(&self, slot: usize, held: HeldId, overdue: Instant) {
        if let Some(mut doing) = self.doing(slot) {
            doing.delivery = Some((held, overdue));
        }
    }

    /// A delivery has ended; whether in time. What comes late counts for nothing, and nothing may follow it.
    pub(super) fn end(&self, slot: usize) -> bool {
        let Some(mut doing) = self.doing(slot) else {
            return true;
        };
        doing.delivery = None;
        !doing.given_up
    }

    /// The work has ended: the places that it gives back, unless that was done when it was given up on.
    pub(super) fn leave(&self, slot: usize) -> Vec<EventType> {
        self.doing(slot)
            .map(|mut doing| std::mem::take(&mut doing.limited))
            .unwrap_or_default()
    }

    /// Gives up on deliveries that should have ended `slack` ago.
    pub(super) fn give_up(&self, now: Instant, slack: Duration) -> Vec<GivenUp> {
        self.0
            .iter()
            .filter_map(|slot| slot.lock().give_up(now, slack))
            .collect()
    }

    /// The events that are being delivered: of each piece of work the one that is at work, or its `whole_runs`.
    pub(super) fn begun(&self, whole_runs: bool) -> HashSet<HeldId> {
        let mut begun = HashSet::new();
        for slot in &self.0 {
            let doing = slot.lock();
            let Some((held, _)) = doing.delivery else { continue };
            begun.insert(held);
            if whole_runs {
                begun.extend(&doing.run);
            }
        }
        begun
    }

    /// How many deliveries have not ended, given up on or not.
    pub(super) fn running(&self) -> usize {
        self.0
            .iter()
            .filter(|slot| slot.lock().delivery.is_some())
            .count()
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Doing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Doing {
    fn give_up(&mut self, now: Instant, slack: Duration) -> Option<GivenUp> {
        let (held, overdue) = self.delivery?;
        if self.given_up || now <= overdue + slack {
            return None;
        }
        self.given_up = true;
        Some(GivenUp {
            held,
            run: std::mem::take(&mut self.run),
            leaves: std::mem::take(&mut self.limited),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLACK: Duration = Duration::from_secs(1);

    fn slots(held: HeldId, overdue: Instant) -> Slots {
        let slots = Slots::new(2);
        slots.begin(1, held, overdue);
        slots
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_before_it_is_given_up_on_has_ended_in_time() {
        let now = Instant::now();
        let slots = slots(HeldId::new(1, 0), now);

        assert!(slots.give_up(now + SLACK, SLACK).is_empty(), "not yet");
        assert!(slots.end(1));

        assert!(slots.give_up(now + SLACK * 2, SLACK).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_given_up_on_ends_late_and_is_given_up_on_once() {
        let now = Instant::now();
        let slots = slots(HeldId::new(1, 0), now);
        let later = now + SLACK * 2;

        let given_up: Vec<_> = slots
            .give_up(later, SLACK)
            .into_iter()
            .map(|one| one.held)
            .collect();
        assert_eq!(given_up, [HeldId::new(1, 0)]);
        assert!(slots.give_up(later, SLACK).is_empty());

        assert_eq!(slots.running(), 1, "it has not ended");
        assert!(!slots.end(1), "it comes late");
        assert_eq!(slots.running(), 0);
    }
}
