use std::{fmt, io, sync::Arc};

use crate::way::Way;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no Postgres, or why it did not obey.
///
/// `Debug` reads like `Display` with the causes appended, because tests `unwrap` it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DevError {
    /// No way led to a server.
    #[error("no Postgres could be started or reached; any of three ways would do:{}", listed(.0))]
    NoServer(Vec<(Way, BoxError)>),
    /// The server that all tests share did not start, as the first of them was told.
    #[error(transparent)]
    Shared(Arc<DevError>),
    /// `OUTBOX_DEV_POSTGRES` names no way.
    #[error("OUTBOX_DEV_POSTGRES is {0:?}; it must be one of: url, docker, local")]
    UnknownWay(String),
    /// `OUTBOX_DEV_DOCKER_NETWORK` names no network.
    #[error("OUTBOX_DEV_DOCKER_NETWORK is {0:?}; it must be one of: bridge, host")]
    UnknownNetwork(String),
    /// A variable's value is no text. It is not shown: it may be a URL with a password.
    #[error("{0} is not UTF-8; it takes text in UTF-8, or is left unset")]
    NotText(String),
    /// The server was given by URL, so it is not ours to stop.
    #[error("a server given by URL is not stopped or restarted; use DevPostgres::start_own")]
    NotOurs,
    /// Starting, stopping or restarting a server of our own failed.
    #[error("could not {operation}")]
    Control {
        /// What was tried.
        operation: &'static str,
        /// What came of it.
        source: BoxError,
    },
    /// The server refused a connection or a statement.
    #[error("postgres refused")]
    Database(#[from] sqlx::Error),
}

impl DevError {
    pub(crate) fn control(operation: &'static str, source: impl Into<BoxError>) -> Self {
        Self::Control {
            operation,
            source: source.into(),
        }
    }
}

impl fmt::Debug for DevError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(self))
    }
}

fn listed(failures: &[(Way, BoxError)]) -> String {
    let hint = |way| match way {
        Way::Url => "set DATABASE_URL to a running server",
        Way::Docker => "start a Docker engine (image: OUTBOX_POSTGRES_IMAGE)",
        Way::Local => "install the PostgreSQL server programs (or set OUTBOX_POSTGRES_BIN)",
    };
    let lines = failures.iter().map(|(way, cause)| {
        format!(
            "\n  {way}: {}\n      failed: {}",
            hint(*way),
            with_causes(cause.as_ref())
        )
    });
    lines.collect()
}

pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        // Some libraries print their source themselves.
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

pub(crate) fn other(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}
