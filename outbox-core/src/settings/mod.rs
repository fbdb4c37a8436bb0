//! What can be set about a relay.

mod bounds;
mod env;
mod found;
mod url;

use std::num::NonZeroU32;
use std::time::Duration;

pub use env::variable;
pub use url::DatabaseUrl;

use crate::{ConfigError, Limits, RetryPolicy};

/// Everything that can be set about a relay, with its defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySettings {
    /// The most events of one claim. Claims start at 100 and grow while they come back full. From 1 to 10,000, default 500.
    pub batch_size: NonZeroU32,
    /// The longest time between two looks at the source when no hint comes. From 10 ms to a day, default 5 s.
    pub poll_timeout: Duration,
    /// The most characters of a stored error. From 64 to 1,000,000, default 2,000.
    pub error_max_len: usize,
    /// The most events, or runs of one ordering key, being delivered at a time. From 1 to 10,000, default 100.
    pub concurrency: NonZeroU32,
    /// When a failed event is tried again, unless its type has a policy. At most 1,000,000 attempts. Default: 10, 1 s to 5 min.
    pub retry: RetryPolicy,
    /// How long a claim is held unless extended: after a crash, its events come back that late. Longer than
    /// `handler_timeout`, from 1 s to a day, default 30 s.
    pub lease: Duration,
    /// How long one try may take, unless its type has a policy. At least 10 ms, default 20 s.
    pub handler_timeout: Duration,
    /// How long running handlers may go on after a stop was asked for. At most a day, default 20 s.
    pub shutdown_grace: Duration,
    /// An event whose lone claim was lost this often is given up: it seems to kill its relay. From 1 to 1,000,000,
    /// default 3.
    pub max_lost: NonZeroU32,
    /// The most bytes of payload and headers in memory; a single event may exceed it alone. Default 64 MiB.
    pub max_bytes: u64,
}

const fn at_least_one(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}

impl Default for RelaySettings {
    fn default() -> Self {
        Self {
            batch_size: at_least_one(500),
            poll_timeout: Duration::from_secs(5),
            error_max_len: 2_000,
            concurrency: at_least_one(100),
            retry: RetryPolicy::default(),
            lease: Duration::from_secs(30),
            handler_timeout: Duration::from_secs(20),
            shutdown_grace: Duration::from_secs(20),
            max_lost: at_least_one(3),
            max_bytes: 64 << 20,
        }
    }
}

impl RelaySettings {
    /// What a dispatcher has to fit into.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits::new(self.lease, self.handler_timeout, self.concurrency.get() as usize)
            .with_max_attempts(self.retry.max_attempts())
    }

    /// Checks every value and how they relate.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        bounds::check_count("batch_size", self.batch_size.get(), &bounds::BATCH_SIZE)?;
        bounds::check_count("concurrency", self.concurrency.get(), &bounds::CONCURRENCY)?;
        bounds::check_count("max_lost", self.max_lost.get(), &bounds::MAX_LOST)?;
        let attempts = self.retry.max_attempts().get();
        bounds::check_count("max_attempts", attempts, &bounds::MAX_ATTEMPTS)?;
        let chars = u32::try_from(self.error_max_len);
        if !chars.is_ok_and(|chars| bounds::ERROR_MAX_LEN.contains(&chars)) {
            let range = &bounds::ERROR_MAX_LEN;
            return Err(bounds::no_count("error_max_len", self.error_max_len, range));
        }
        bounds::check_time("poll_timeout", self.poll_timeout, &bounds::POLL_TIMEOUT)?;
        bounds::check_time("handler_timeout", self.handler_timeout, &bounds::HANDLER_TIMEOUT)?;
        bounds::check_time("lease", self.lease, &bounds::LEASE)?;
        bounds::check_time("shutdown_grace", self.shutdown_grace, &bounds::SHUTDOWN_GRACE)?;
        if self.lease <= self.handler_timeout {
            let timeout = bounds::in_seconds(self.handler_timeout);
            return Err(ConfigError::new(
                "lease",
                bounds::in_seconds(self.lease),
                format!("it has to outlast handler_timeout, {timeout}"),
            ));
        }
        if self.max_bytes == 0 {
            return Err(ConfigError::new("max_bytes", 0, "it takes 1 or more"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut RelaySettings)) -> String {
        let mut settings = RelaySettings::default();
        change(&mut settings);
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn the_builder_has_the_bounds_of_the_environment() {
        let tiny = Duration::from_nanos(1);
        let long = Duration::from_secs(86_401);
        for (said, expected) in [
            (
                refusal(|settings| settings.batch_size = NonZeroU32::MAX),
                "batch_size is 4294967295; it takes a whole number from 1 to 10000",
            ),
            (
                refusal(|settings| settings.concurrency = NonZeroU32::MAX),
                "concurrency is 4294967295; it takes a whole number from 1 to 10000",
            ),
            (
                refusal(|settings| settings.max_lost = NonZeroU32::MAX),
                "max_lost is 4294967295; it takes a whole number from 1 to 1000000",
            ),
            (
                refusal(|settings| settings.retry = RetryPolicy::fixed(NonZeroU32::MAX, tiny)),
                "max_attempts is 4294967295; it takes a whole number from 1 to 1000000",
            ),
            (
                refusal(|settings| settings.error_max_len = 63),
                "error_max_len is 63; it takes a whole number from 64 to 1000000",
            ),
            (
                refusal(|settings| settings.poll_timeout = tiny),
                "poll_timeout is 0.000000001 s; it takes seconds, from 0.01 to 86400",
            ),
            (
                refusal(|settings| settings.handler_timeout = tiny),
                "handler_timeout is 0.000000001 s; it takes seconds, from 0.01 to 86400",
            ),
            (
                refusal(|settings| settings.handler_timeout = long),
                "handler_timeout is 86401 s; it takes seconds, from 0.01 to 86400",
            ),
            (
                refusal(|settings| settings.lease = Duration::from_millis(2)),
                "lease is 0.002 s; it takes seconds, from 1 to 86400",
            ),
            (
                refusal(|settings| settings.shutdown_grace = long),
                "shutdown_grace is 86401 s; it takes seconds, from 0 to 86400",
            ),
            (
                refusal(|settings| settings.lease = settings.handler_timeout),
                "lease is 20 s; it has to outlast handler_timeout, 20 s",
            ),
        ] {
            assert_eq!(said, expected);
        }
    }
}
