//! How events of a type are treated.

use std::num::NonZeroU32;
use std::time::Duration;

/// What becomes of later events of an ordering key when one of them has failed for good.
///
/// In order of strictness: of several handlers that an event has, the greatest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum KeyPolicy {
    /// They are delivered as if it had not been there.
    #[default]
    GoOn,
    /// They wait until an operator resumes the key.
    Stop,
    /// They wait behind the failed one, and follow it in order once it is redriven or discarded.
    Park,
}

/// When a failed event is tried again, and how often.
///
/// Attempt 1 is the first try; `max_attempts` counts it. A pure rule: no clock, no generator inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    max_attempts: NonZeroU32,
    backoff: Backoff,
}

/// How long to wait before the next try.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Backoff {
    Fixed(Duration),
    Exponential { base: Duration, cap: Duration },
}

/// What the retry policy says after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again after this wait.
    Retry(Duration),
    /// The attempts are used up.
    GiveUp,
}

impl RetryPolicy {
    /// One try, no more.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            max_attempts: NonZeroU32::MIN,
            backoff: Backoff::Fixed(Duration::ZERO),
        }
    }

    /// The same wait before each further try.
    #[must_use]
    pub const fn fixed(max_attempts: NonZeroU32, wait: Duration) -> Self {
        Self {
            max_attempts,
            backoff: Backoff::Fixed(wait),
        }
    }

    /// Waits that double from `base` to at most `cap`, each drawn evenly between `base` and its bound,
    /// so that events which failed together do not come back together.
    #[must_use]
    pub const fn exponential(max_attempts: NonZeroU32, base: Duration, cap: Duration) -> Self {
        Self {
            max_attempts,
            backoff: Backoff::Exponential { base, cap },
        }
    }

    /// How many tries there are in all.
    #[must_use]
    pub const fn max_attempts(&self) -> NonZeroU32 {
        self.max_attempts
    }

    /// The same waits with another number of tries.
    #[must_use]
    pub const fn with_max_attempts(mut self, max_attempts: NonZeroU32) -> Self {
        self.max_attempts = max_attempts;
        self
    }

    /// What to do after attempt number `attempt` has failed. `jitter` is a random number from 0 up to 1; what lies outside
    /// counts as the nearer of both.
    #[must_use]
    pub fn next(&self, attempt: u32, jitter: f64) -> Next {
        if attempt >= self.max_attempts.get() {
            return Next::GiveUp;
        }
        Next::Retry(self.wait(attempt, jitter))
    }

    /// As [`next`](Self::next), with the wait that a handler asked for instead of the policy's.
    #[must_use]
    pub fn next_after(&self, attempt: u32, wait: Duration) -> Next {
        match self.next(attempt, 0.0) {
            Next::Retry(_) => Next::Retry(wait),
            Next::GiveUp => Next::GiveUp,
        }
    }

    fn wait(&self, attempt: u32, jitter: f64) -> Duration {
        match self.backoff {
            Backoff::Fixed(wait) => wait,
            Backoff::Exponential { base, cap } => {
                let doublings = attempt.saturating_sub(1).min(63);
                let factor = 2_f64.powi(i32::try_from(doublings).unwrap_or(63));
                let bound = (base.as_secs_f64() * factor)
                    .min(cap.as_secs_f64())
                    .max(base.as_secs_f64());
                let span = bound - base.as_secs_f64();
                // What is no number counts as 0. Rounded to a float, the longest span is longer than a duration can be.
                let part = Duration::try_from_secs_f64(span * jitter.max(0.0).clamp(0.0, 1.0));
                base.saturating_add(part.unwrap_or(Duration::MAX))
                    .min(cap.max(base))
            }
        }
    }
}

impl Default for RetryPolicy {
    /// 10 attempts, exponential from 1 second to 5 minutes.
    fn default() -> Self {
        const TEN: NonZeroU32 = NonZeroU32::new(10).unwrap();
        Self::exponential(TEN, Duration::from_secs(1), Duration::from_secs(300))
    }
}

/// How events of a type are treated. What is `None` follows the relay's setting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// When a failed event is tried again.
    pub retry: Option<RetryPolicy>,
    /// How long one try may take.
    pub timeout: Option<Duration>,
    /// How many events of this type one relay may have in flight.
    pub concurrency: Option<NonZeroU32>,
    /// What a failed event means for its ordering key.
    pub key: KeyPolicy,
}

impl Policy {
    /// Sets the retry policy.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Sets the timeout of one try.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Limits how many events of this type one relay has in flight.
    #[must_use]
    pub fn with_concurrency(mut self, concurrency: NonZeroU32) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Sets what a failed event means for its ordering key.
    #[must_use]
    pub fn with_key(mut self, key: KeyPolicy) -> Self {
        self.key = key;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_and_no_jitter_is_too_much() {
        let (max, ten) = (NonZeroU32::MAX, Duration::from_secs(10));
        let policy = RetryPolicy::exponential(max, ten, Duration::MAX);
        let constant = RetryPolicy::exponential(max, Duration::MAX, Duration::MAX);
        let wait = |policy: &RetryPolicy, attempt, jitter| match policy.next(attempt, jitter) {
            Next::Retry(wait) => wait,
            Next::GiveUp => panic!("{attempt} of {max}"),
        };

        for attempt in [1, 2, 63, 64, 100, u32::MAX - 1] {
            for jitter in [0.0, 0.5, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
                assert!(wait(&policy, attempt, jitter) >= ten, "{attempt} {jitter}");
                assert_eq!(wait(&constant, attempt, jitter), Duration::MAX);
            }
        }
        assert_eq!(wait(&policy, 100, 1.0), Duration::MAX);
        assert_eq!(wait(&policy, 100, f64::NAN), ten);
    }
}
