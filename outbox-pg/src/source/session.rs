//! Connections of the relay, each use with a deadline.

use std::time::Duration;

use outbox_core::SourceError;
use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::time::timeout;

use crate::error::source_error;

/// The relay's own small pool: handlers that use up the application's cannot stop the relay.
#[derive(Debug, Clone)]
pub(super) struct Sessions {
    pub(super) pool: PgPool,
    /// A network that swallows packets answers nothing; after this long the connection is given up.
    pub(super) deadline: Duration,
}

impl Sessions {
    /// Runs one operation on a connection of the pool.
    ///
    /// A connection that failed, was too slow, or whose user was dropped is closed rather than given back: it may be
    /// in the middle of an answer, or have a server behind it that does not answer.
    pub(super) async fn run<T, W>(&self, operation: &'static str, work: W) -> Result<T, SourceError>
    where
        W: for<'c> FnOnce(
            &'c mut PgConnection,
        ) -> futures_util::future::BoxFuture<'c, Result<T, sqlx::Error>>,
    {
        let slow = || SourceError::unavailable(operation, Slow(self.deadline));
        let connection = timeout(self.deadline, self.pool.acquire())
            .await
            .map_err(|_| slow())?;
        let mut session = Session(Some(connection.map_err(|error| source_error(operation, error))?));
        let result = match session.0.as_mut() {
            Some(connection) => timeout(self.deadline, work(connection)).await,
            None => return Err(slow()),
        };
        match result {
            Ok(Ok(value)) => {
                drop(session.0.take());
                Ok(value)
            }
            Ok(Err(error)) => Err(source_error(operation, error)),
            Err(_) => Err(slow()),
        }
    }
}

/// Closes its connection unless that was taken out.
struct Session(Option<PoolConnection<Postgres>>);

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            drop(connection.detach());
        }
    }
}

/// The server did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct Slow(Duration);
