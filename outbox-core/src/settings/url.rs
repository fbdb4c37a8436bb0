//! Where the database is.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;

use super::found::Found;
use super::variable;
use crate::ConfigError;

const SCHEMES: [&str; 2] = ["postgres", "postgresql"];

/// Where the database is. `Debug` and `Display` show neither user nor password nor anything else of it.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    url: String,
    origin: Cow<'static, str>,
}

impl DatabaseUrl {
    /// `JOBS_DB_URL`, so that the relay can connect in a role of its own; else `DATABASE_URL`.
    ///
    /// # Errors
    /// [`ConfigError`] when neither is set, or when the one that counts is not UTF-8 or no URL of Postgres.
    pub fn from_env() -> Result<Self, ConfigError> {
        Self::read(|name| std::env::var_os(name))
    }

    /// As [`from_env`](Self::from_env), with another place to look variables up.
    ///
    /// # Errors
    /// [`ConfigError`] when neither is set, or when the one that counts is no URL of Postgres.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Self::read(|name| lookup(name).map(OsString::from))
    }

    fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        for variable in [variable::JOBS_DB_URL, variable::DATABASE_URL] {
            if let Some(url) = Found::new(variable, lookup(variable))?.value {
                return Self::parse(variable, &url);
            }
        }
        let right = format!(
            "set it, or {}, to postgres://USER:PASSWORD@HOST/DATABASE",
            variable::JOBS_DB_URL
        );
        Err(ConfigError::new(variable::DATABASE_URL, "not set", right))
    }

    /// The URL that was found in `origin`: a variable or a file, which errors name. Blanks around it do not count.
    ///
    /// # Errors
    /// [`ConfigError`] when it is no URL of Postgres. It shows no more of it than the name of another scheme.
    pub fn parse(origin: impl Into<Cow<'static, str>>, url: &str) -> Result<Self, ConfigError> {
        let (origin, url) = (origin.into(), url.trim().to_owned());
        // Of another database's URL the client would take host and port, and knock there.
        let what = match url.split_once("://") {
            Some((scheme, _)) if SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known)) => {
                return Ok(Self { url, origin });
            }
            // No more of it: the rest may be secret.
            Some((scheme, _)) if scheme.len() <= 20 && scheme.chars().all(|c| c.is_ascii_alphanumeric()) => {
                format!("a URL of {scheme}")
            }
            _ => "no URL".to_owned(),
        };
        let right = "it takes postgres://USER:PASSWORD@HOST/DATABASE";
        Err(ConfigError::new(origin, what, right))
    }

    /// The URL with its secrets. For connecting, not for logs.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.url
    }

    /// The variable that it came from, or what was given to [`parse`](Self::parse).
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl(from {})", self.origin)
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the database of {}", self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relay_has_a_database_url_of_its_own_and_hides_it() {
        let lookup = |name: &str| Some(format!("postgres://user:secret@host/{name}"));
        let url = DatabaseUrl::from_lookup(lookup).unwrap();
        let fallback =
            DatabaseUrl::from_lookup(|name| lookup(name).filter(|_| name == variable::DATABASE_URL)).unwrap();

        assert_eq!(url.expose(), "postgres://user:secret@host/JOBS_DB_URL");
        assert_eq!(fallback.origin(), "DATABASE_URL");
        assert!(!format!("{url:?} {url}").contains("secret"));
        assert_eq!(
            DatabaseUrl::from_lookup(|_| None).unwrap_err().to_string(),
            "DATABASE_URL is not set; set it, or JOBS_DB_URL, to postgres://USER:PASSWORD@HOST/DATABASE"
        );
    }

    #[test]
    fn a_url_of_another_database_is_refused_and_not_shown() {
        let refusal = |url: &str| {
            let lookup = |name: &str| (name == variable::JOBS_DB_URL).then(|| url.to_owned());
            DatabaseUrl::from_lookup(lookup).unwrap_err().to_string()
        };

        assert_eq!(
            refusal("mysql://user:secret@host/db"),
            "JOBS_DB_URL is a URL of mysql; it takes postgres://USER:PASSWORD@HOST/DATABASE"
        );
        for unclear in ["host=h password=secret", "secret word://x"] {
            assert!(
                refusal(unclear).starts_with("JOBS_DB_URL is no URL; "),
                "{unclear}"
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_text_is_never_replaced_by_another_database() {
        use std::os::unix::ffi::OsStringExt;

        for name in ["JOBS_DB_URL", "DATABASE_URL"] {
            let refusal = DatabaseUrl::read(|asked| {
                let broken = OsString::from_vec(b"postgres://secret\xff".to_vec());
                let good = (asked == "DATABASE_URL").then(|| OsString::from("postgres://other"));
                if asked == name { Some(broken) } else { good }
            })
            .unwrap_err();
            assert_eq!(
                (refusal.setting.as_str(), refusal.value.as_str()),
                (name, "not UTF-8")
            );
        }
    }
}
