//! Errors of the core. Each kind answers one question of its caller.

use std::error::Error as StdError;
use std::fmt;

/// Any error that can cross threads.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What a source's error means for the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The store cannot be reached, is overloaded, or was restarted: try again after a pause.
    Unavailable,
    /// The store is reached but not as it should be: schema missing or of another version, a right missing.
    /// Trying again helps only after somebody has acted; the relay still does, at its slowest.
    Misconfigured,
    /// The store will not hold what it was given, and would refuse it again: a text in its encoding, a number too large.
    /// Of several settlements one is to blame; the relay finds out which.
    Refused,
}

/// A source could not do what it was asked.
#[derive(Debug)]
pub struct SourceError {
    kind: SourceErrorKind,
    operation: &'static str,
    cause: BoxError,
}

impl SourceError {
    /// The store cannot be used right now.
    pub fn unavailable(operation: &'static str, cause: impl Into<BoxError>) -> Self {
        Self {
            kind: SourceErrorKind::Unavailable,
            operation,
            cause: cause.into(),
        }
    }

    /// The store is not set up as it should be.
    pub fn misconfigured(operation: &'static str, cause: impl Into<BoxError>) -> Self {
        Self {
            kind: SourceErrorKind::Misconfigured,
            operation,
            cause: cause.into(),
        }
    }

    /// The store will not hold what it was given.
    pub fn refused(operation: &'static str, cause: impl Into<BoxError>) -> Self {
        Self {
            kind: SourceErrorKind::Refused,
            operation,
            cause: cause.into(),
        }
    }

    /// What it means for the relay.
    #[must_use]
    pub fn kind(&self) -> SourceErrorKind {
        self.kind
    }

    /// Which operation failed: `claim`, `settle`, `extend`.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            SourceErrorKind::Unavailable => write!(f, "source unavailable during {}", self.operation),
            SourceErrorKind::Misconfigured => {
                write!(f, "source misconfigured, seen during {}", self.operation)
            }
            SourceErrorKind::Refused => write!(f, "source refused values during {}", self.operation),
        }
    }
}

impl StdError for SourceError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.cause)
    }
}

/// A setting that cannot work: which one, its value, and what would be right.
///
/// It is shown in one line: what a terminal could take for more than text is escaped, and a long value is cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is {}; {right}", shown(.setting), shown(.value))]
pub struct ConfigError {
    /// The setting's name: an environment variable, or a builder's method.
    pub setting: String,
    /// The value that was refused, never a secret.
    pub value: String,
    /// What would be right.
    pub right: String,
}

impl ConfigError {
    /// Says what is wrong with a setting.
    pub fn new(setting: impl Into<String>, value: impl fmt::Display, right: impl Into<String>) -> Self {
        Self {
            setting: setting.into(),
            value: value.to_string(),
            right: right.into(),
        }
    }
}

/// The most characters shown of a name or a value.
const SHOWN_MAX: usize = 100;

/// A text from outside, fit for a terminal and a line of a log.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(SHOWN_MAX) {
        match c {
            '\\' | '\'' | '"' => shown.push(c),
            _ => shown.extend(c.escape_debug()),
        }
    }
    match text.chars().skip(SHOWN_MAX).count() {
        0 => shown,
        left => format!("{shown}… ({left} characters more)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_value_is_shown_in_one_short_line_of_plain_text() {
        let shown = |value: &str| ConfigError::new("x", value, "no").to_string();

        assert_eq!(shown("it's \"é\\\""), "x is it's \"é\\\"; no");
        assert_eq!(
            shown("a\r\n\u{1b}[31m\u{202e}"),
            "x is a\\r\\n\\u{1b}[31m\\u{202e}; no"
        );
        let long = shown(&"é".repeat(1_000_000));
        assert_eq!(
            long,
            format!("x is {}… (999900 characters more); no", "é".repeat(100))
        );
    }
}
