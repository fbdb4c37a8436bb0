//! What each setting may be, from wherever it comes: a value is refused by a builder as it is in the environment.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::ConfigError;

pub(super) const BATCH_SIZE: RangeInclusive<u32> = 1..=10_000;
pub(super) const CONCURRENCY: RangeInclusive<u32> = 1..=10_000;
pub(super) const MAX_ATTEMPTS: RangeInclusive<u32> = 1..=1_000_000;
pub(super) const MAX_LOST: RangeInclusive<u32> = 1..=1_000_000;
/// The relay's own texts, such as that of a timeout, have to fit.
pub(super) const ERROR_MAX_LEN: RangeInclusive<u32> = 64..=1_000_000;

/// No time in here makes sense beyond a day, and arithmetic on instants stays far from its limits.
const DAY: Duration = Duration::from_secs(86_400);
/// Below, an idle relay would do nothing but look.
pub(super) const POLL_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=DAY;
/// Below, a busy machine loses claims that it works on: they are extended three times in it.
pub(super) const LEASE: RangeInclusive<Duration> = Duration::from_secs(1)..=DAY;
/// Below, no handler that waits for anything ends in time.
pub(super) const HANDLER_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(10)..=DAY;
pub(super) const SHUTDOWN_GRACE: RangeInclusive<Duration> = Duration::ZERO..=DAY;

/// Refuses a number beyond its bounds.
pub(super) fn check_count(setting: &str, value: u32, range: &RangeInclusive<u32>) -> Result<(), ConfigError> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(no_count(setting, value, range)),
    }
}

/// Refuses a time beyond its bounds.
pub(super) fn check_time(
    setting: &str,
    value: Duration,
    range: &RangeInclusive<Duration>,
) -> Result<(), ConfigError> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(no_time(setting, in_seconds(value), range)),
    }
}

pub(super) fn no_count(setting: &str, value: impl Display, range: &RangeInclusive<u32>) -> ConfigError {
    let right = format!(
        "it takes a whole number from {} to {}",
        range.start(),
        range.end()
    );
    ConfigError::new(setting, value, right)
}

pub(super) fn no_time(setting: &str, value: impl Display, range: &RangeInclusive<Duration>) -> ConfigError {
    let (least, most) = (range.start().as_secs_f64(), range.end().as_secs_f64());
    ConfigError::new(
        setting,
        value,
        format!("it takes seconds, from {least} to {most}"),
    )
}

pub(super) fn in_seconds(value: Duration) -> String {
    format!("{} s", value.as_secs_f64())
}
