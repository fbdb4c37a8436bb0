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
        Next::Retry(after) => Outcome::Retry { after, error, done },
        Next::GiveUp => Outcome::Failed { error, done, key },
    };
    let next = retry.next(tried.attempt, jitter);
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
            FailureKind::Reject => Outcome::Failed { error, done, key },
            FailureKind::Outage => Outcome::Released {
                after: retry_after.unwrap_or_else(|| outage_wait(tried.outages, jitter)),
                done,
            },
            FailureKind::NotTried => Outcome::Released {
                after: NOT_TRIED_WAIT,
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
