//! What is recorded after a try: a plain function of how the try ended.

use std::time::Duration;

use crate::{Delivered, FailureKind, KeyPolicy, Next, Outcome, PartName, RetryPolicy};

/// How a try ended, as the worker saw it. Texts are bounded already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TryResult {
    Delivered(Delivered),
    Failed(Failed),
    /// The deadline passed. Parts that the dispatcher could still name are done.
    TimedOut {
        limit: Duration,
        done: Option<Vec<PartName>>,
    },
    Panicked {
        message: String,
    },
    /// The relay called the try off: it stops, or has lost the claim.
    CalledOff {
        done: Option<Vec<PartName>>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) kind: FailureKind,
    pub(super) error: String,
    pub(super) done: Vec<PartName>,
    pub(super) retry_after: Option<Duration>,
}

/// What is known of the event before its try.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tried<'a> {
    /// Which try it was, from 1.
    pub(super) attempt: u32,
    /// How many outages of this event type came before, without a delivery in between.
    pub(super) outages: u32,
    /// Parts done by earlier tries.
    pub(super) done: &'a [PartName],
}

/// How the stored error of a panic begins.
pub(super) const PANICKED: &str = "panicked: ";

/// The longest wait after an outage.
pub(super) const OUTAGE_CAP: Duration = Duration::from_secs(30);
/// Nothing waits longer, whatever a handler asks for: arithmetic on instants has its limits.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(366 * 86_400);

/// A dispatcher that declines without trying is not asked again at once.
const NOT_TRIED_WAIT: Duration = Duration::from_millis(100);
const OUTAGE_BASE: Duration = Duration::from_millis(500);

/// The outcome to record for a try. `jitter` is a random number from 0 up to 1.
pub(super) fn settle_outcome(
    result: TryResult,
    tried: &Tried<'_>,
    (retry, key): (&RetryPolicy, KeyPolicy),
    jitter: f64,
) -> Outcome {
    let earlier = || tried.done.to_vec();
    let again = |next: Next, error: String, done: Vec<PartName>| match next {
        Next::Retry(after) => Outcome::Retry {
            after: after.min(WAIT_MAX),
            error,
            done,
        },
        Next::GiveUp => Outcome::failed(error, done, key),
    };
    let next = retry.next(tried.attempt, jitter);
    let bounded = |wait: Duration| wait.min(WAIT_MAX);
    match result {
        TryResult::Delivered(_) => Outcome::Completed,
        TryResult::CalledOff { done } => Outcome::Released {
            after: Duration::ZERO,
            done: done.unwrap_or_else(earlier),
        },
        TryResult::TimedOut { limit, done } => {
            let error = format!("timed out after {} s", limit.as_secs_f64());
            again(next, error, done.unwrap_or_else(earlier))
        }
        TryResult::Panicked { message } => again(next, format!("{PANICKED}{message}"), earlier()),
        TryResult::Failed(Failed {
            kind,
            error,
            done,
            retry_after,
        }) => match kind {
            FailureKind::Retry => match retry_after {
                Some(wait) => again(retry.next_after(tried.attempt, wait), error, done),
                None => again(next, error, done),
            },
            FailureKind::Reject => Outcome::failed(error, done, key),
            FailureKind::Outage => Outcome::Released {
                after: retry_after.map_or_else(|| outage_wait(tried.outages, jitter), bounded),
                done,
            },
            FailureKind::NotTried => Outcome::Released {
                after: retry_after.map_or(NOT_TRIED_WAIT, bounded),
                done,
            },
        },
    }
}

/// How long to leave a transport alone after so many outages in a row.
pub(super) fn outage_wait(outages: u32, jitter: f64) -> Duration {
    let bound = OUTAGE_BASE.saturating_mul(1 << outages.min(10)).min(OUTAGE_CAP);
    OUTAGE_BASE + (bound - OUTAGE_BASE).mul_f64(jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn two_tries() -> RetryPolicy {
        RetryPolicy::fixed(NonZeroU32::new(2).unwrap(), SECOND)
    }

    fn part(name: &str) -> PartName {
        PartName::new(name).unwrap()
    }

    fn failed(kind: FailureKind) -> TryResult {
        TryResult::Failed(Failed {
            kind,
            error: "no".to_owned(),
            done: vec![part("new")],
            retry_after: None,
        })
    }

    fn settle(result: TryResult, attempt: u32) -> Outcome {
        let done = [part("old")];
        let tried = Tried {
            attempt,
            outages: 0,
            done: &done,
        };
        settle_outcome(result, &tried, (&two_tries(), KeyPolicy::Stop), 0.0)
    }

    fn again(error: &str, done: &str) -> Outcome {
        Outcome::Retry {
            after: SECOND,
            error: error.to_owned(),
            done: vec![part(done)],
        }
    }

    fn dead(error: &str, done: &str) -> Outcome {
        Outcome::Failed {
            error: error.to_owned(),
            done: vec![part(done)],
            key: KeyPolicy::Stop,
        }
    }

    fn back(after: Duration, done: &str) -> Outcome {
        Outcome::Released {
            after,
            done: vec![part(done)],
        }
    }

    #[test]
    fn every_ending_has_its_outcome() {
        let late = || TryResult::TimedOut {
            limit: SECOND * 20,
            done: None,
        };
        let panicked = || TryResult::Panicked {
            message: "boom".to_owned(),
        };
        let table = [
            (TryResult::Delivered(Delivered::Handled), 1, Outcome::Completed),
            (TryResult::Delivered(Delivered::Unhandled), 2, Outcome::Completed),
            (failed(FailureKind::Retry), 1, again("no", "new")),
            (failed(FailureKind::Retry), 2, dead("no", "new")),
            (failed(FailureKind::Retry), u32::MAX, dead("no", "new")),
            (failed(FailureKind::Reject), 1, dead("no", "new")),
            (failed(FailureKind::Outage), 2, back(OUTAGE_BASE, "new")),
            (failed(FailureKind::NotTried), 2, back(NOT_TRIED_WAIT, "new")),
            (late(), 1, again("timed out after 20 s", "old")),
            (late(), 2, dead("timed out after 20 s", "old")),
            (panicked(), 1, again("panicked: boom", "old")),
            (panicked(), 2, dead("panicked: boom", "old")),
            (
                TryResult::CalledOff { done: None },
                2,
                back(Duration::ZERO, "old"),
            ),
            (
                TryResult::CalledOff {
                    done: Some(vec![part("new")]),
                },
                2,
                back(Duration::ZERO, "new"),
            ),
        ];

        for (result, attempt, outcome) in table {
            assert_eq!(
                settle(result.clone(), attempt),
                outcome,
                "{result:?} at attempt {attempt}"
            );
        }
    }

    #[test]
    fn a_wait_that_was_asked_for_replaces_the_policys_and_has_a_limit() {
        for (asked, given) in [(SECOND * 7, SECOND * 7), (Duration::MAX, WAIT_MAX)] {
            let TryResult::Failed(failure) = failed(FailureKind::Retry) else {
                unreachable!()
            };
            let result = TryResult::Failed(Failed {
                retry_after: Some(asked),
                ..failure
            });

            assert!(matches!(settle(result.clone(), 1), Outcome::Retry { after, .. } if after == given));
            assert!(
                matches!(settle(result, 2), Outcome::Failed { .. }),
                "still bounded by the attempts"
            );
        }
    }

    proptest! {
        /// Invariants 20 and 21: the number of tries is bounded, and so is every wait, for every attempt.
        #[test]
        fn waits_lie_between_base_and_cap(
            max in 1_u32..2_000,
            attempt in any::<u32>(),
            base_ms in 0_u64..100_000,
            cap_ms in 0_u64..10_000_000,
            jitter in 0.0..=1.0_f64,
        ) {
            let (base, cap) = (Duration::from_millis(base_ms), Duration::from_millis(cap_ms));
            let policy = RetryPolicy::exponential(NonZeroU32::new(max).unwrap(), base, cap);

            match policy.next(attempt, jitter) {
                Next::GiveUp => prop_assert!(attempt >= max),
                Next::Retry(wait) => {
                    prop_assert!(attempt < max);
                    prop_assert!(base <= wait && wait <= cap.max(base), "{wait:?}");
                }
            }
        }

        #[test]
        fn outages_have_bounded_waits(outages in any::<u32>(), jitter in 0.0..=1.0_f64) {
            let wait = outage_wait(outages, jitter);

            prop_assert!(OUTAGE_BASE <= wait && wait <= OUTAGE_CAP, "{wait:?}");
        }
    }

    fn settled(kind: FailureKind, attempt: u32, retry_after: Option<Duration>) -> Outcome {
        let failed = Failed {
            kind,
            error: "no".to_owned(),
            done: ["a", "!b"].map(|part| PartName::new(part).unwrap()).to_vec(),
            retry_after,
        };
        let tried = Tried {
            attempt,
            outages: 0,
            done: &[],
        };
        let policy = (&RetryPolicy::default(), KeyPolicy::GoOn);
        settle_outcome(TryResult::Failed(failed), &tried, policy, 0.5)
    }

    #[test]
    fn refusals_are_kept_while_the_event_is_tried_and_forgotten_when_it_has_failed() {
        let names = |outcome: Outcome| match outcome {
            Outcome::Retry { done, .. } | Outcome::Failed { done, .. } | Outcome::Released { done, .. } => {
                done.iter().map(ToString::to_string).collect::<Vec<_>>()
            }
            Outcome::Completed => Vec::new(),
        };

        assert_eq!(names(settled(FailureKind::Retry, 1, None)), ["a", "!b"]);
        assert_eq!(names(settled(FailureKind::Outage, 1, None)), ["a", "!b"]);
        assert_eq!(names(settled(FailureKind::Retry, 10, None)), ["a"]);
        assert_eq!(names(settled(FailureKind::Reject, 1, None)), ["a"]);
    }

    #[test]
    fn an_event_that_was_not_tried_waits_as_long_as_the_dispatcher_asks() {
        let hour = Duration::from_secs(3600);

        let outcome = settled(FailureKind::NotTried, 1, Some(hour));

        assert!(
            matches!(outcome, Outcome::Released { after, .. } if after == hour),
            "{outcome:?}"
        );
    }
}
