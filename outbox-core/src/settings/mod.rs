//! What can be set about a relay.

mod env;

use std::num::NonZeroU32;
use std::time::Duration;

pub use env::{DatabaseUrl, variable};

use crate::{ConfigError, Limits, RetryPolicy};

/// Everything that can be set about a relay, with its defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelaySettings {
    /// The most events of one claim. Claims start at 100 and grow while they come back full. Default 500.
    pub batch_size: NonZeroU32,
    /// The longest time between two looks at the source when no hint comes. Default 5 s.
    pub poll_timeout: Duration,
    /// The most characters of a stored error. Default 2,000.
    pub error_max_len: usize,
    /// The most events, or runs of one ordering key, being delivered at a time. Default 100.
    pub concurrency: NonZeroU32,
    /// When a failed event is tried again, unless its type has a policy. Default: 10 attempts, 1 s to 5 min.
    pub retry: RetryPolicy,
    /// How long a claim is held unless extended: after a crash, its events come back that late. Default 30 s.
    pub lease: Duration,
    /// How long one try may take, unless its type has a policy. Default 20 s.
    pub handler_timeout: Duration,
    /// How long running handlers may go on after a stop was asked for. Default 20 s.
    pub shutdown_grace: Duration,
    /// An event whose lone claim was lost this often is given up: it seems to kill its relay. Default 3.
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
    }

    /// Checks every value and how they relate.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that cannot work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let seconds = |value: Duration| format!("{} s", value.as_secs_f64());
        let refuse =
            |setting, value: Duration, right: String| Err(ConfigError::new(setting, seconds(value), right));
        if self.poll_timeout.is_zero() {
            return refuse(
                "poll_timeout",
                self.poll_timeout,
                "it takes more than 0".to_owned(),
            );
        }
        if self.handler_timeout.is_zero() {
            return refuse(
                "handler_timeout",
                self.handler_timeout,
                "it takes more than 0".to_owned(),
            );
        }
        if self.lease <= self.handler_timeout {
            let right = format!(
                "it has to outlast handler_timeout, {}",
                seconds(self.handler_timeout)
            );
            return refuse("lease", self.lease, right);
        }
        let longest = Duration::from_secs(86_400);
        for (setting, value) in [
            ("poll_timeout", self.poll_timeout),
            ("lease", self.lease),
            ("shutdown_grace", self.shutdown_grace),
        ] {
            if value > longest {
                return refuse(setting, value, format!("it takes at most {}", seconds(longest)));
            }
        }
        // The relay's own texts, such as that of a timeout, have to fit.
        if self.error_max_len < 64 {
            return Err(ConfigError::new(
                "error_max_len",
                self.error_max_len,
                "it takes 64 or more",
            ));
        }
        if self.max_bytes == 0 {
            return Err(ConfigError::new("max_bytes", 0, "it takes 1 or more"));
        }
        Ok(())
    }
}
