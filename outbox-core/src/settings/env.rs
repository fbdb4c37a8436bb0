//! Settings from the environment.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use super::RelaySettings;
use crate::ConfigError;

/// The environment variables that settings are read from.
pub mod variable {
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

/// A day: no time in here makes sense beyond it, and arithmetic on instants stays far from its limits.
const SECONDS_MAX: f64 = 86_400.0;

impl RelaySettings {
    /// The defaults, changed by what the environment says.
    ///
    /// Times are in seconds and may have a fraction. A variable that is set but empty counts as not set.
    ///
    /// # Errors
    /// [`ConfigError`] names the first variable that cannot be used, its value, and what would be right.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`from_env`](Self::from_env), with another place to look variables up.
    ///
    /// # Errors
    /// [`ConfigError`] names the first variable that cannot be used, its value, and what would be right.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        let look = |name: &'static str| Found::new(name, lookup(name));
        look(variable::BATCH_SIZE).count(&mut settings.batch_size, 10_000)?;
        look(variable::POLL_TIMEOUT_SECS).seconds(&mut settings.poll_timeout)?;
        let mut error_max_len = NonZeroU32::new(u32::try_from(settings.error_max_len).unwrap_or(u32::MAX));
        if let Some(chars) = &mut error_max_len {
            look(variable::ERROR_MAX_LEN).count(chars, 1_000_000)?;
            settings.error_max_len = chars.get() as usize;
        }
        look(variable::CONCURRENCY).count(&mut settings.concurrency, 10_000)?;
        let mut attempts = settings.retry.max_attempts();
        look(variable::MAX_ATTEMPTS).count(&mut attempts, 1_000_000)?;
        settings.retry = settings.retry.with_max_attempts(attempts);
        look(variable::LEASE_SECS).seconds(&mut settings.lease)?;
        look(variable::HANDLER_TIMEOUT_SECS).seconds(&mut settings.handler_timeout)?;
        look(variable::SHUTDOWN_GRACE_SECS).seconds(&mut settings.shutdown_grace)?;
        look(variable::MAX_LOST).count(&mut settings.max_lost, 1_000_000)?;
        settings.check().map_err(in_the_environment)?;
        Ok(settings)
    }
}

/// An operator knows variables, not fields.
fn in_the_environment(error: ConfigError) -> ConfigError {
    let setting = match error.setting.as_str() {
        "lease" => variable::LEASE_SECS,
        "poll_timeout" => variable::POLL_TIMEOUT_SECS,
        "shutdown_grace" => variable::SHUTDOWN_GRACE_SECS,
        "error_max_len" => variable::ERROR_MAX_LEN,
        "handler_timeout" => variable::HANDLER_TIMEOUT_SECS,
        _ => return error,
    };
    let right = error
        .right
        .replace("handler_timeout", variable::HANDLER_TIMEOUT_SECS);
    ConfigError::new(setting, error.value, right)
}

/// A variable, and its value if it has one.
struct Found {
    name: &'static str,
    value: Option<String>,
}

impl Found {
    fn new(name: &'static str, value: Option<String>) -> Self {
        let value = value
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty());
        Self { name, value }
    }

    fn count(self, into: &mut NonZeroU32, most: u32) -> Result<(), ConfigError> {
        let Some(value) = self.value else { return Ok(()) };
        match value.parse::<NonZeroU32>() {
            Ok(count) if count.get() <= most => *into = count,
            _ => {
                return Err(ConfigError::new(
                    self.name,
                    value,
                    format!("it takes a whole number from 1 to {most}"),
                ));
            }
        }
        Ok(())
    }

    fn seconds(self, into: &mut Duration) -> Result<(), ConfigError> {
        let Some(value) = self.value else { return Ok(()) };
        match value.parse::<f64>() {
            Ok(seconds) if (0.0..=SECONDS_MAX).contains(&seconds) => *into = Duration::from_secs_f64(seconds),
            _ => {
                return Err(ConfigError::new(
                    self.name,
                    value,
                    format!("it takes seconds, from 0 to {SECONDS_MAX}"),
                ));
            }
        }
        Ok(())
    }
}

/// Where the database is. `Debug` and `Display` show neither user nor password nor anything else of it.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    url: String,
    variable: &'static str,
}

impl DatabaseUrl {
    /// `JOBS_DB_URL`, so that the relay can connect in a role of its own; else `DATABASE_URL`.
    ///
    /// # Errors
    /// [`ConfigError`] when neither is set.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`from_env`](Self::from_env), with another place to look variables up.
    ///
    /// # Errors
    /// [`ConfigError`] when neither is set.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        [variable::JOBS_DB_URL, variable::DATABASE_URL]
            .into_iter()
            .find_map(|variable| {
                Found::new(variable, lookup(variable))
                    .value
                    .map(|url| Self { url, variable })
            })
            .ok_or_else(|| {
                let right = format!(
                    "set it, or {}, to postgres://USER:PASSWORD@HOST/DATABASE",
                    variable::JOBS_DB_URL
                );
                ConfigError::new(variable::DATABASE_URL, "not set", right)
            })
    }

    /// The URL with its secrets. For connecting, not for logs.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.url
    }

    /// The variable that it came from.
    #[must_use]
    pub fn variable(&self) -> &'static str {
        self.variable
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl(from {})", self.variable)
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the database of {}", self.variable)
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
                "OUTBOX_LEASE_SECS is -1; it takes seconds, from 0 to 86400",
            ),
            (
                "OUTBOX_LEASE_SECS",
                "NaN",
                "OUTBOX_LEASE_SECS is NaN; it takes seconds, from 0 to 86400",
            ),
            (
                "OUTBOX_POLL_TIMEOUT_SECS",
                "0",
                "OUTBOX_POLL_TIMEOUT_SECS is 0 s; it takes more than 0",
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

    #[test]
    fn the_relay_has_a_database_url_of_its_own_and_hides_it() {
        let lookup = |name: &str| Some(format!("postgres://user:secret@host/{name}"));
        let url = DatabaseUrl::from_lookup(lookup).unwrap();
        let fallback =
            DatabaseUrl::from_lookup(|name| lookup(name).filter(|_| name == variable::DATABASE_URL)).unwrap();

        assert_eq!(url.expose(), "postgres://user:secret@host/JOBS_DB_URL");
        assert_eq!(fallback.variable(), "DATABASE_URL");
        assert!(!format!("{url:?} {url}").contains("secret"));
        assert_eq!(
            DatabaseUrl::from_lookup(|_| None).unwrap_err().to_string(),
            "DATABASE_URL is not set; set it, or JOBS_DB_URL, to postgres://USER:PASSWORD@HOST/DATABASE"
        );
    }
}
