//! One policy for an event out of its handlers' options. No I/O.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{KeyPolicy, Policy, RetryPolicy};

use crate::HandlerOptions;

/// The policy under which every handler gets at least what it asks for.
///
/// `relay_timeout` is what a handler without a timeout gets, as far as it is known.
pub(crate) fn merged(options: &[HandlerOptions], relay_timeout: Option<Duration>) -> Policy {
    let mut policy = Policy::default();
    policy.retry = most_patient(options);
    policy.timeout = longest(options, relay_timeout);
    policy.concurrency = options.iter().filter_map(|options| options.concurrency).min();
    policy.key = options
        .iter()
        .map(|options| options.key)
        .max_by_key(|key| strictness(*key))
        .unwrap_or_default();
    policy
}

/// The retry policy with the most attempts. A handler that sets none counts with the default's.
fn most_patient(options: &[HandlerOptions]) -> Option<RetryPolicy> {
    let usual = RetryPolicy::default().max_attempts();
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

/// The attempts of one handler, if the event may be tried more often than that.
pub(crate) fn own_attempts(options: &HandlerOptions, all: &[HandlerOptions]) -> Option<NonZeroU32> {
    let own = options.retry.as_ref()?.max_attempts();
    match most_patient(all) {
        Some(event) if event.max_attempts() <= own => None,
        _ => Some(own),
    }
}

fn strictness(key: KeyPolicy) -> u8 {
    match key {
        KeyPolicy::GoOn => 0,
        KeyPolicy::Park => 1,
        KeyPolicy::Stop => 2,
    }
}

#[cfg(test)]
mod tests {
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
        let usual = Some(seconds(20));

        assert_eq!(
            merged(&[short.clone(), long.clone()], usual).timeout,
            Some(seconds(60))
        );
        assert_eq!(merged(&[short.clone(), plain()], usual).timeout, None);
        assert_eq!(merged(&[long, plain()], usual).timeout, Some(seconds(60)));
        assert_eq!(merged(&[short], usual).timeout, Some(seconds(5)));
        assert_eq!(merged(&[plain()], usual).timeout, None);
    }

    #[test]
    fn the_most_attempts_count_and_the_others_give_up_earlier() {
        let (few, many) = (plain().with_retry(tries(2)), plain().with_retry(tries(20)));
        let all = [few.clone(), many.clone()];

        assert_eq!(merged(&all, None).retry, Some(tries(20)));
        assert_eq!(own_attempts(&few, &all), NonZeroU32::new(2));
        assert_eq!(own_attempts(&many, &all), None);
        assert_eq!(own_attempts(&few, std::slice::from_ref(&few)), None);
    }

    #[test]
    fn a_handler_without_a_retry_policy_keeps_the_relays() {
        let few = plain().with_retry(tries(1));
        let all = [few.clone(), plain()];

        assert_eq!(merged(&all, None).retry, None);
        assert_eq!(own_attempts(&few, &all), NonZeroU32::new(1));
    }

    #[test]
    fn the_smallest_concurrency_and_the_strictest_key_policy_count() {
        let narrow = plain().with_concurrency(NonZeroU32::new(2).unwrap());
        let wide = plain().with_concurrency(NonZeroU32::new(9).unwrap());
        let parks = plain().with_key(KeyPolicy::Park);
        let stops = plain().with_key(KeyPolicy::Stop);

        let policy = merged(&[wide, narrow, plain(), stops, parks], None);

        assert_eq!(policy.concurrency, NonZeroU32::new(2));
        assert_eq!(policy.key, KeyPolicy::Stop);
    }
}
