//! How many events a relay finds, and whether it should sleep or poll for them. Pure.

use std::time::Duration;

/// How long events are counted together, in milliseconds.
const SPAN: u64 = 100;
/// With more in a span the relay polls: it finds several by one look, and publishers need not notify.
const BUSY: usize = 50;
/// With no more in each of two spans it sleeps between them, and is woken by each.
const CALM: usize = 30;
/// This many more crowded notifications than others: publishers wait for each other in order to notify.
const CROWD: u32 = 8;
/// How long a relay polls at least, once it is woken: at first, and when it is woken again and again.
pub(super) const VIGIL_MIN: Duration = Duration::from_millis(100);
pub(super) const VIGIL_MAX: Duration = Duration::from_secs(2);
/// A sleep of this length was worth it.
const LONG: Duration = Duration::from_secs(5);

/// How long to poll after such a sleep, when it was so long after the sleep before.
pub(super) fn vigil(last: Duration, slept: Duration) -> Duration {
    if slept >= LONG {
        VIGIL_MIN
    } else {
        (last * 2).min(VIGIL_MAX)
    }
}

/// The events found in this span of time, and in the one before.
#[derive(Debug, Default)]
pub(super) struct Pace {
    span: u64,
    found: usize,
    before: usize,
}

impl Pace {
    /// Counts events that were found at this millisecond.
    pub(super) fn found(&mut self, at: u64, events: usize) {
        self.turn(at);
        self.found = self.found.saturating_add(events);
    }

    pub(super) fn is_busy(&mut self, at: u64) -> bool {
        self.turn(at);
        self.found.max(self.before) > BUSY
    }

    pub(super) fn is_calm(&mut self, at: u64) -> bool {
        self.turn(at);
        self.found.max(self.before) <= CALM
    }

    fn turn(&mut self, at: u64) {
        let span = at / SPAN;
        if span > self.span {
            self.before = if span == self.span + 1 { self.found } else { 0 };
            (self.span, self.found) = (span, 0);
        }
    }
}

/// Whether publishers that notify meet each other.
#[derive(Debug, Default)]
pub(super) struct Crowd(u32);

impl Crowd {
    /// Takes note of a notification; whether most of the last ones met another on its way.
    pub(super) fn heard(&mut self, crowded: bool) -> bool {
        self.0 = if crowded {
            self.0 + 1
        } else {
            self.0.saturating_sub(1)
        };
        self.0 >= CROWD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_few_are_calm_and_a_burst_is_busy_until_a_span_has_passed() {
        let mut pace = Pace::default();
        for at in (0..1_000).step_by(5) {
            pace.found(at, 1);
            assert!(pace.is_calm(at) && !pace.is_busy(at), "200 a second, at {at}");
        }

        pace.found(1_000, 500);

        assert!(pace.is_busy(1_199) && !pace.is_calm(1_199));
        assert!(pace.is_calm(1_200) && !pace.is_busy(1_200));
    }

    #[test]
    fn short_sleeps_make_for_long_vigils() {
        let short = Duration::from_secs(1);

        let vigils: Vec<u128> = std::iter::successors(Some(VIGIL_MIN), |last| Some(vigil(*last, short)))
            .take(7)
            .map(|vigil| vigil.as_millis())
            .collect();

        assert_eq!(vigils, [100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert_eq!(vigil(VIGIL_MAX, Duration::from_secs(6)), VIGIL_MIN);
    }

    #[test]
    fn between_calm_and_busy_nothing_changes() {
        let mut pace = Pace::default();
        pace.found(0, 40);

        assert!(!pace.is_calm(0) && !pace.is_busy(0));
    }

    #[test]
    fn a_crowd_is_told_from_two_that_meet() {
        let mut crowd = Crowd::default();
        assert!(
            !(0..100).any(|n| crowd.heard(n % 3 == 0)),
            "a third of them met another"
        );

        let mut crowd = Crowd::default();
        assert_eq!((1..100).find(|_| crowd.heard(true)), Some(8));
    }
}
