//! Settings from the environment.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::found::Found;
use super::{RelaySettings, bounds};
use crate::ConfigError;

/// The environment variables that settings are read from.
pub mod variable {
    use crate::ConfigError;
    use crate::settings::found::Found;

    /// The value of a variable of the environment, without blanks around it; `None` if it is not set, or blank.
    ///
    /// # Errors
    /// [`ConfigError`] names the variable if its value is not UTF-8, without showing it.
    pub fn read(name: &str) -> Result<Option<String>, ConfigError> {
        Ok(Found::new(name, std::env::var_os(name))?.value)
    }

    /// See [`RelaySettings::batch_size`](crate::RelaySettings::batch_size).
    pub const BATCH_SIZE: &str = "OUTBOX_BATCH_SIZE";
    /// See [`RelaySettings::poll_timeout`](crate::RelaySettings::poll_timeout).
    pub const POLL_TIMEOUT_SECS: &str = "OUTBOX_POLL_TIMEOUT_SECS";
    /// See [`RelaySettings::error_max_len`](crate::RelaySettings::error_max_len).
    pub const ERROR_MAX_LEN: &str = "OUTBOX_ERROR_MAX_LEN";
    /// See [`RelaySettings::concurrency`](crate::RelaySettings::concurrency).
    pub const CONCURRENCY: &str = "OUTBOX_CONCURRENCY";
    /// See [`RelaySettings::retry`](crate::RelaySettings::retry).
    pub const MAX_ATTEMPTS: &str = "OUTBOX_MAX_ATTEMPTS";
    /// See [`RelaySettings::lease`](crate::RelaySettings::lease).
    pub const LEASE_SECS: &str = "OUTBOX_LEASE_SECS";
    /// See [`RelaySettings::handler_timeout`](crate::RelaySettings::handler_timeout).
    pub const HANDLER_TIMEOUT_SECS: &str = "OUTBOX_HANDLER_TIMEOUT_SECS";
    /// See [`RelaySettings::shutdown_grace`](crate::RelaySettings::shutdown_grace).
    pub const SHUTDOWN_GRACE_SECS: &str = "OUTBOX_SHUTDOWN_GRACE_SECS";
    /// See [`RelaySettings::max_lost`](crate::RelaySettings::max_lost).
    pub const MAX_LOST: &str = "OUTBOX_MAX_LOST";
    /// Where the relay's database is; see [`DatabaseUrl`](crate::DatabaseUrl).
    pub const JOBS_DB_URL: &str = "JOBS_DB_URL";
    /// Where the database is, unless `JOBS_DB_URL` says otherwise.
    pub const DATABASE_URL: &str = "DATABASE_URL";
}

impl RelaySettings {
    /// The defaults, changed by what the environment says.
    ///
    /// Times are in seconds and may have a fraction. A variable that is set but empty counts as not set.
    ///
    /// # Errors
    /// [`ConfigError`] names the first variable that cannot be used, its value, and what would be right.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::read(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), with another place to look variables up.
    ///
    /// # Errors
    /// [`ConfigError`] names the first variable that cannot be used, its value, and what would be right.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::read(|name| lookup(name).map(OsString::from))
    }

    fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        let look = |name: &'static str| Found::new(name, lookup(name));
        settings.batch_size = look(variable::BATCH_SIZE)?
            .count(&bounds::BATCH_SIZE)?
            .unwrap_or(settings.batch_size);
        settings.poll_timeout = look(variable::POLL_TIMEOUT_SECS)?
            .seconds(&bounds::POLL_TIMEOUT)?
            .unwrap_or(settings.poll_timeout);
        settings.error_max_len = look(variable::ERROR_MAX_LEN)?
            .count(&bounds::ERROR_MAX_LEN)?
            .map_or(settings.error_max_len, |chars| chars.get() as usize);
        settings.concurrency = look(variable::CONCURRENCY)?
            .count(&bounds::CONCURRENCY)?
            .unwrap_or(settings.concurrency);
        if let Some(attempts) = look(variable::MAX_ATTEMPTS)?.count(&bounds::MAX_ATTEMPTS)? {
            settings.retry = settings.retry.with_max_attempts(attempts);
        }
        settings.lease = look(variable::LEASE_SECS)?
            .seconds(&bounds::LEASE)?
            .unwrap_or(settings.lease);
        settings.handler_timeout = look(variable::HANDLER_TIMEOUT_SECS)?
            .seconds(&bounds::HANDLER_TIMEOUT)?
            .unwrap_or(settings.handler_timeout);
        settings.shutdown_grace = look(variable::SHUTDOWN_GRACE_SECS)?
            .seconds(&bounds::SHUTDOWN_GRACE)?
            .unwrap_or(settings.shutdown_grace);
        settings.max_lost = look(variable::MAX_LOST)?
            .count(&bounds::MAX_LOST)?
            .unwrap_or(settings.max_lost);
        settings.check().map_err(in_the_environment)?;
        Ok(settings)
    }
}

/// An operator knows variables, not fields. What each may be is checked by then, so it is how they relate that is wrong.
fn in_the_environment(error: ConfigError) -> ConfigError {
    if error.setting != "lease" {
        return error;
    }
    let right = error
        .right
        .replace("handler_timeout", variable::HANDLER_TIMEOUT_SECS);
    ConfigError::new(variable::LEASE_SECS, error.value, right)
}

impl Found<'_> {
    fn count(self, range: &RangeInclusive<u32>) -> Result<Option<NonZeroU32>, ConfigError> {
        let Some(value) = self.value else { return Ok(None) };
        match value.parse::<NonZeroU32>() {
            Ok(count) if range.contains(&count.get()) => Ok(Some(count)),
            _ => Err(bounds::no_count(self.name, value, range)),
        }
    }

    fn seconds(self, range: &RangeInclusive<Duration>) -> Result<Option<Duration>, ConfigError> {
        let Some(value) = self.value else { return Ok(None) };
        match value.parse().map(Duration::try_from_secs_f64) {
            Ok(Ok(time)) if range.contains(&time) => Ok(Some(time)),
            _ => Err(bounds::no_time(self.name, value, range)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<RelaySettings, ConfigError> {
        RelaySettings::from_lookup(|asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn an_empty_environment_gives_the_defaults() {
        assert_eq!(RelaySettings::from_lookup(|_| None), Ok(RelaySettings::default()));
        assert_eq!(
            RelaySettings::from_lookup(|_| Some("  ".to_owned())),
            Ok(RelaySettings::default())
        );
    }

    #[test]
    fn every_variable_changes_its_setting() {
        let number = |n| NonZeroU32::new(n).unwrap();
        let read = |name, value| with(name, value).unwrap();

        assert_eq!(read("OUTBOX_BATCH_SIZE", "7").batch_size, number(7));
        assert_eq!(
            read("OUTBOX_POLL_TIMEOUT_SECS", "0.5").poll_timeout,
            Duration::from_millis(500)
        );
        assert_eq!(read("OUTBOX_ERROR_MAX_LEN", "80").error_max_len, 80);
        assert_eq!(read("OUTBOX_CONCURRENCY", " 9 ").concurrency, number(9));
        assert_eq!(read("OUTBOX_MAX_ATTEMPTS", "4").retry.max_attempts(), number(4));
        assert_eq!(read("OUTBOX_LEASE_SECS", "60").lease, Duration::from_secs(60));
        assert_eq!(
            read("OUTBOX_HANDLER_TIMEOUT_SECS", "2").handler_timeout,
            Duration::from_secs(2)
        );
        assert_eq!(
            read("OUTBOX_SHUTDOWN_GRACE_SECS", "0").shutdown_grace,
            Duration::ZERO
        );
        assert_eq!(read("OUTBOX_MAX_LOST", "1").max_lost, number(1));
    }

    #[test]
    fn a_bad_value_is_named_with_what_would_be_right() {
        let refusals = [
            (
                "OUTBOX_BATCH_SIZE",
                "0",
                "OUTBOX_BATCH_SIZE is 0; it takes a whole number from 1 to 10000",
            ),
            (
                "OUTBOX_CONCURRENCY",
                "many",
                "OUTBOX_CONCURRENCY is many; it takes a whole number from 1 to 10000",
            ),
            (
                "OUTBOX_LEASE_SECS",
                "-1",
                "OUTBOX_LEASE_SECS is -1; it takes seconds, from 1 to 86400",
            ),
            (
                "OUTBOX_LEASE_SECS",
                "NaN",
                "OUTBOX_LEASE_SECS is NaN; it takes seconds, from 1 to 86400",
            ),
            (
                "OUTBOX_POLL_TIMEOUT_SECS",
                "0",
                "OUTBOX_POLL_TIMEOUT_SECS is 0; it takes seconds, from 0.01 to 86400",
            ),
            (
                "OUTBOX_POLL_TIMEOUT_SECS",
                "1e-12",
                "OUTBOX_POLL_TIMEOUT_SECS is 1e-12; it takes seconds, from 0.01 to 86400",
            ),
            (
                "OUTBOX_ERROR_MAX_LEN",
                "1",
                "OUTBOX_ERROR_MAX_LEN is 1; it takes a whole number from 64 to 1000000",
            ),
            (
                "OUTBOX_MAX_LOST",
                "a\nb\u{1b}[2J",
                "OUTBOX_MAX_LOST is a\\nb\\u{1b}[2J; it takes a whole number from 1 to 1000000",
            ),
            (
                "OUTBOX_LEASE_SECS",
                "20",
                "OUTBOX_LEASE_SECS is 20 s; it has to outlast OUTBOX_HANDLER_TIMEOUT_SECS, 20 s",
            ),
        ];

        for (name, value, message) in refusals {
            assert_eq!(with(name, value).unwrap_err().to_string(), message);
        }
    }

    /// What an error says that a variable takes, it takes: its least and its most.
    #[test]
    fn the_ends_of_every_range_are_accepted() {
        for name in [
            "OUTBOX_BATCH_SIZE",
            "OUTBOX_CONCURRENCY",
            "OUTBOX_ERROR_MAX_LEN",
            "OUTBOX_MAX_ATTEMPTS",
            "OUTBOX_MAX_LOST",
            "OUTBOX_POLL_TIMEOUT_SECS",
            "OUTBOX_SHUTDOWN_GRACE_SECS",
            "OUTBOX_HANDLER_TIMEOUT_SECS",
            "OUTBOX_LEASE_SECS",
        ] {
            let right = with(name, "no").unwrap_err().right;
            let ends: Vec<_> = right
                .split(' ')
                .filter(|word| word.parse::<f64>().is_ok())
                .collect();
            assert_eq!(ends.len(), 2, "{right}");
            for end in ends {
                let read = RelaySettings::from_lookup(|asked| match asked {
                    _ if asked == name => Some(end.to_owned()),
                    // The two that relate, out of each other's way.
                    "OUTBOX_LEASE_SECS" => Some("86400".to_owned()),
                    "OUTBOX_HANDLER_TIMEOUT_SECS" => Some("0.5".to_owned()),
                    _ => None,
                });
                let related = read
                    .as_ref()
                    .is_err_and(|error| error.right.starts_with("it has to outlast"));
                assert!(read.is_ok() || related, "{name}={end}: {read:?}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_text_is_never_replaced_by_a_default() {
        use std::os::unix::ffi::OsStringExt;

        let broken = |asked: &str, name: &str| {
            (asked == name).then(|| OsString::from_vec(b"postgres://secret\xff".to_vec()))
        };
        let read = std::cell::RefCell::new(Vec::new());
        let note = |name: &str| read.borrow_mut().push(name.to_owned());
        RelaySettings::read(|name| {
            note(name);
            None
        })
        .unwrap();
        for name in &read.take() {
            let refusal = RelaySettings::read(|asked| broken(asked, name)).unwrap_err();
            assert_eq!((&refusal.setting, refusal.value.as_str()), (name, "not UTF-8"));
        }
    }
}
