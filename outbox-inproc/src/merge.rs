//! One policy for an event out of its handlers' options. No I/O.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{Policy, RetryPolicy};

use crate::HandlerOptions;

/// What the relay gives to handlers that ask for nothing else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usual {
    /// Unknown until a relay has said it.
    pub(crate) timeout: Option<Duration>,
    pub(crate) attempts: NonZeroU32,
}

impl Default for Usual {
    fn default() -> Self {
        Self {
            timeout: None,
            attempts: RetryPolicy::default().max_attempts(),
        }
    }
}

/// The policy under which every handler gets at least what it asks for.
pub(crate) fn merged(options: &[HandlerOptions], usual: Usual) -> Policy {
    let mut policy = Policy::default();
    policy.retry = most_patient(options, usual.attempts);
    policy.timeout = longest(options, usual.timeout);
    policy.concurrency = options.iter().filter_map(|options| options.concurrency).min();
    policy.key = options
        .iter()
        .map(|options| options.key)
        .max()
        .unwrap_or_default();
    policy
}

/// The retry policy with the most attempts. A handler that sets none counts with the relay's.
fn most_patient(options: &[HandlerOptions], usual: NonZeroU32) -> Option<RetryPolicy> {
    options
        .iter()
        .map(|options| options.retry.as_ref())
        .max_by_key(|retry| retry.map_or(usual, RetryPolicy::max_attempts))?
        .cloned()
}

/// The longest time that any handler may take. `None`, the relay's own, unless another is needed.
fn longest(options: &[HandlerOptions], relay_timeout: Option<Duration>) -> Option<Duration> {
    let longest = options.iter().filter_map(|options| options.timeout).max()?;
    let all_set = options.iter().all(|options| options.timeout.is_some());
    match relay_timeout {
        _ if all_set => Some(longest),
        Some(usual) if longest > usual => Some(longest),
        _ => None,
    }
}

/// How many attempts of its event one handler takes part in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempts {
    own: Option<NonZeroU32>,
    /// The most that any handler of the event sets, and whether some set none.
    most: Option<NonZeroU32>,
    some_unset: bool,
}

impl Attempts {
    pub(crate) fn of(options: &HandlerOptions, all: &[HandlerOptions]) -> Self {
        let set = |options: &HandlerOptions| options.retry.as_ref().map(RetryPolicy::max_attempts);
        Self {
            own: set(options),
            most: all.iter().filter_map(set).max(),
            some_unset: all.iter().any(|options| options.retry.is_none()),
        }
    }

    /// The attempts of the handler, if the event may be tried more often than that.
    pub(crate) fn fewer(self, usual: NonZeroU32) -> Option<NonZeroU32> {
        let own = self.own.unwrap_or(usual);
        let event = self.most.max(self.some_unset.then_some(usual))?;
        (own < event).then_some(own)
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::KeyPolicy;

    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn plain() -> HandlerOptions {
        HandlerOptions::new("plain")
    }

    fn tries(attempts: u32) -> RetryPolicy {
        RetryPolicy::fixed(NonZeroU32::new(attempts).unwrap(), seconds(1))
    }

    #[test]
    fn the_longest_timeout_counts_unless_the_relay_gives_more_to_those_without() {
        let (short, long) = (
            plain().with_timeout(seconds(5)),
            plain().with_timeout(seconds(60)),
        );
        let usual = Usual {
            timeout: Some(seconds(20)),
            ..Usual::default()
        };

        assert_eq!(
            merged(&[short.clone(), long.clone()], usual).timeout,
            Some(seconds(60))
        );
        assert_eq!(merged(&[short.clone(), plain()], usual).timeout, None);
        assert_eq!(merged(&[long, plain()], usual).timeout, Some(seconds(60)));
        assert_eq!(merged(&[short], usual).timeout, Some(seconds(5)));
        assert_eq!(merged(&[plain()], usual).timeout, None);
    }

    fn usual(attempts: u32) -> Usual {
        Usual {
            timeout: None,
            attempts: NonZeroU32::new(attempts).unwrap(),
        }
    }

    /// How many attempts the event has, `None` for as many as the relay gives, and in how many each handler takes part.
    fn attempts(all: &[HandlerOptions], usual: Usual) -> (Option<u32>, Vec<Option<u32>>) {
        let retry = merged(all, usual).retry;
        let fewer = all.iter().map(|one| Attempts::of(one, all).fewer(usual.attempts));
        (
            retry.map(|retry| retry.max_attempts().get()),
            fewer.map(|one| one.map(NonZeroU32::get)).collect(),
        )
    }

    #[test]
    fn the_most_attempts_count_and_the_others_give_up_earlier() {
        let (few, many) = (plain().with_retry(tries(2)), plain().with_retry(tries(20)));

        let both = attempts(&[few.clone(), many], usual(10));
        let one = attempts(&[few], usual(10));

        assert_eq!(both, (Some(20), vec![Some(2), None]));
        assert_eq!(one, (Some(2), vec![None]));
    }

    #[test]
    fn a_handler_without_a_retry_policy_keeps_the_relays() {
        let five = || [plain().with_retry(tries(5)), plain()];

        assert_eq!(attempts(&five(), usual(10)), (None, vec![Some(5), None]));
        assert_eq!(attempts(&five(), usual(3)), (Some(5), vec![None, Some(3)]));
    }

    #[test]
    fn the_smallest_concurrency_and_the_strictest_key_policy_count() {
        let narrow = plain().with_concurrency(NonZeroU32::new(2).unwrap());
        let wide = plain().with_concurrency(NonZeroU32::new(9).unwrap());
        let parks = plain().with_key(KeyPolicy::Park);
        let stops = plain().with_key(KeyPolicy::Stop);

        let policy = merged(&[wide, narrow, plain(), parks, stops], Usual::default());

        assert_eq!(policy.concurrency, NonZeroU32::new(2));
        assert_eq!(policy.key, KeyPolicy::Park);
    }
}
