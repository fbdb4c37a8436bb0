//! Waiting after the source has failed.

use std::time::Duration;

const BASE: Duration = Duration::from_millis(100);
const CAP: Duration = Duration::from_secs(5);

/// Failures in a row, and the wait that they call for.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Counts a failure and returns how long to wait.
    pub(super) fn fail(&mut self) -> Duration {
        let wait = wait(self.failures, fastrand::f64());
        self.failures = self.failures.saturating_add(1);
        wait
    }

    /// Forgets the failures; how many they were.
    pub(super) fn succeed(&mut self) -> u32 {
        std::mem::take(&mut self.failures)
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}

/// Between half the bound and the bound, which doubles from 100 ms to 5 s.
fn wait(failures: u32, jitter: f64) -> Duration {
    let bound = BASE.saturating_mul(1 << failures.min(10)).min(CAP);
    bound.mul_f64(0.5 + 0.5 * jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_cap_and_never_vanish() {
        let bounds = [
            (0, 50, 100),
            (1, 100, 200),
            (5, 1_600, 3_200),
            (6, 2_500, 5_000),
            (u32::MAX, 2_500, 5_000),
        ];

        for (failures, least, most) in bounds {
            assert_eq!(wait(failures, 0.0), Duration::from_millis(least));
            assert_eq!(wait(failures, 1.0), Duration::from_millis(most));
        }
    }
}
