//! How the command ends: codes for programs, one line for people.

use std::error::Error;
use std::process::ExitCode;

use outbox::{ConfigError, MigrateError, SourceError, SourceErrorKind, TextError};

/// What the exit code says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Success = 0,
    /// `doctor` found something that needs an operator; or the output cannot be written.
    Findings = 1,
    /// The command line or a setting cannot work. clap uses 2 as well.
    Usage = 2,
    /// The database cannot be reached.
    Unavailable = 3,
    /// The database refuses: a missing right, or a schema of another version.
    Refused = 4,
    /// There is no such event or action.
    NotFound = 5,
    /// Nothing was done, because it was not confirmed.
    NotConfirmed = 6,
    /// Interrupted; what was done stays done.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why the command could not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Schema(#[from] MigrateError),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("the database cannot be reached: {0}")]
    Unreachable(String),
    #[error("the database did not answer as it should")]
    Database(#[from] sqlx::Error),
    #[error("{what}; {remedy}")]
    Refused { what: String, remedy: String },
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    NotConfirmed(String),
    #[error("cannot write")]
    Output(#[from] std::io::Error),
    #[error("cannot be JSON")]
    Json(#[from] serde_json::Error),
}

impl CliError {
    pub(crate) fn code(&self) -> Exit {
        match self {
            Self::Config(_) | Self::Text(_) | Self::Usage(_) => Exit::Usage,
            Self::Schema(MigrateError::Database { source, .. }) | Self::Database(source) => {
                of_database(source)
            }
            Self::Unreachable(_) => Exit::Unavailable,
            Self::Source(error) if error.kind() == SourceErrorKind::Unavailable => Exit::Unavailable,
            Self::Schema(_) | Self::Source(_) | Self::Refused { .. } => Exit::Refused,
            Self::NotFound(_) => Exit::NotFound,
            Self::NotConfirmed(_) => Exit::NotConfirmed,
            Self::Output(_) | Self::Json(_) => Exit::Findings,
        }
    }
}

fn of_database(error: &sqlx::Error) -> Exit {
    match error {
        sqlx::Error::Database(_) => Exit::Refused,
        _ => Exit::Unavailable,
    }
}

/// An error and its causes in one line, each said once.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = said(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = said(error);
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = match error.downcast_ref() {
            Some(sqlx::Error::Database(_)) => None,
            _ => error.source(),
        };
    }
    text
}

/// What an error says. Of what the server says, not the line in the server's own source.
fn said(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref() {
        Some(sqlx::Error::Database(refusal)) => refusal.message().to_owned(),
        _ => error.to_string(),
    }
}
