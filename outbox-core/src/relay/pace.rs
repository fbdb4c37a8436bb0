//! How much to claim, and when it is worth a claim. Plain arithmetic over counts and instants.

use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

/// Over this time it is measured how fast events are delivered, and for this time events are claimed ahead.
const WINDOW: Duration = Duration::from_millis(100);

/// The size of the first claim, and of one that says that there is a backlog.
pub(super) const FIRST_CLAIM: NonZeroU32 = NonZeroU32::new(100).unwrap();

#[derive(Debug)]
pub(super) struct Pace {
    concurrency: u64,
    batch: u32,
    size: u32,
    window_start: Instant,
    current: u64,
    previous: u64,
}

impl Pace {
    pub(super) fn new(concurrency: NonZeroU32, batch: NonZeroU32, now: Instant) -> Self {
        Self {
            concurrency: u64::from(concurrency.get()),
            batch: batch.get(),
            size: batch.min(FIRST_CLAIM).get(),
            window_start: now,
            current: 0,
            previous: 0,
        }
    }

    /// Counts delivered events.
    pub(super) fn delivered(&mut self, events: u64, now: Instant) {
        self.roll(now);
        self.current += events;
    }

    fn roll(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.window_start);
        if passed < WINDOW {
            return;
        }
        self.previous = if passed < WINDOW * 2 { self.current } else { 0 };
        self.current = 0;
        self.window_start = now;
    }

    /// How many events to ask for while so many are held, or `None` while that is not worth a claim. So many of them are
    /// `waiting` behind another event of their key, or for a place in their type: they take memory but no place here, or
    /// one key or type could keep all others waiting.
    ///
    /// Beyond the places for deliveries, only as much is claimed ahead as was delivered within the last moment: slow
    /// deliveries do not hoard events that another relay could take.
    pub(super) fn ask(&mut self, held: usize, waiting: usize, now: Instant) -> Option<NonZeroU32> {
        self.roll(now);
        let recent = self.current.max(self.previous);
        let ahead_max = u64::from(self.batch) * 2;
        let at_work = held.saturating_sub(waiting) as u64;
        let places = (self.concurrency + recent.min(ahead_max)).saturating_sub(at_work);
        let memory = (self.concurrency + ahead_max).saturating_sub(held as u64);
        let room = places.min(memory);
        let size = u64::from(self.size);
        let worth = (recent / 10).clamp(1, (size / 2).max(1));
        if room < worth {
            return None;
        }
        NonZeroU32::new(u32::try_from(room.min(size)).unwrap_or(self.size))
    }

    /// Learns from a claim; whether it came back full, so that more may be due.
    pub(super) fn claimed(&mut self, asked: NonZeroU32, got: usize) -> bool {
        let full = got >= asked.get() as usize;
        if full && asked.get() >= self.size {
            self.size = self.size.saturating_mul(2).min(self.batch);
        }
        full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(n: u32) -> NonZeroU32 {
        NonZeroU32::new(n).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn slow_deliveries_are_claimed_one_for_one_and_never_ahead() {
        let now = Instant::now();
        let mut pace = Pace::new(number(10), number(500), now);

        assert_eq!(pace.ask(0, 0, now), Some(number(10)));
        assert_eq!(pace.ask(9, 0, now), Some(number(1)));
        assert_eq!(pace.ask(10, 0, now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_behind_its_key_takes_memory_and_no_place() {
        let now = Instant::now();
        let mut pace = Pace::new(number(10), number(20), now);

        assert_eq!(pace.ask(10, 9, now), Some(number(9)));
        assert_eq!(pace.ask(19, 17, now), Some(number(8)));
        assert_eq!(pace.ask(48, 45, now), Some(number(2)), "50 events are the most");
        assert_eq!(pace.ask(50, 46, now), None);
    }

    #[tokio::test(start_paused = true)]
    async fn fast_deliveries_are_claimed_ahead_in_growing_claims() {
        let now = Instant::now();
        let mut pace = Pace::new(number(10), number(500), now);

        pace.delivered(3_000, now);
        assert!(pace.claimed(number(100), 100));

        assert_eq!(pace.ask(10, 0, now), Some(number(200)));
        assert_eq!(
            pace.ask(1_000, 0, now),
            None,
            "10 free places are not worth a claim at that rate"
        );
        let later = now + WINDOW * 3;
        assert_eq!(
            pace.ask(10, 0, later),
            None,
            "what was delivered long ago counts no more"
        );
    }
}
