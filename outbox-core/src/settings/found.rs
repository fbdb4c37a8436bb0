//! A variable of the environment, as it was found.

use std::ffi::OsString;

use crate::ConfigError;

/// A variable, and its value if it has one.
pub(super) struct Found<'a> {
    pub(super) name: &'a str,
    pub(super) value: Option<String>,
}

impl<'a> Found<'a> {
    /// Blank counts as not set. What is no text is refused: as "not set" it would be replaced by a default, or by
    /// another database, and nobody would know.
    pub(super) fn new(name: &'a str, value: Option<OsString>) -> Result<Self, ConfigError> {
        let value = value.map(OsString::into_string).transpose();
        // The value is not shown: it may be a URL with a password.
        let value = value
            .map_err(|_| ConfigError::new(name, "not UTF-8", "it takes text in UTF-8, or is left unset"))?;
        let value = value
            .map(|value| value.trim().to_owned())
            .filter(|value| !value.is_empty());
        Ok(Self { name, value })
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn what_is_no_text_is_refused_by_name_and_not_shown() {
        let value = OsString::from_vec(b"postgres://u:secret@\xff".to_vec());
        let refusal = Found::new("JOBS_DB_URL", Some(value)).err().unwrap();

        assert_eq!(
            refusal.to_string(),
            "JOBS_DB_URL is not UTF-8; it takes text in UTF-8, or is left unset"
        );
    }

    #[test]
    fn a_blank_value_counts_as_not_set() {
        for value in [None, Some(OsString::new()), Some(OsString::from(" \n"))] {
            assert_eq!(Found::new("OUTBOX_LEASE_SECS", value).unwrap().value, None);
        }
    }
}
