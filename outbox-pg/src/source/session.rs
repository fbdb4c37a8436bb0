//! Connections of the relay, each use with a deadline.

use std::time::Duration;

use outbox_core::SourceError;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, PgConnection, PgPool, Postgres};
use tokio::time::timeout;

use crate::error::source_error;

/// The relay's own small pool: handlers that use up the application's cannot stop the relay.
#[derive(Debug, Clone)]
pub(super) struct Sessions {
    pub(super) pool: PgPool,
    /// A network that swallows packets answers nothing; after this long the connection is given up.
    pub(super) deadline: Duration,
    /// Behind a pooler in transaction mode, only a transaction keeps to one session: between the preparation of a
    /// statement and its execution, too.
    pub(super) pooler: bool,
}

/// Overrides whatever the defaults of the role and the database are. A relay that is stopped in the middle, by a debugger
/// or a machine that sleeps, must not hold the lock of all claims for longer than a lease lasts.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; \
                     SET LOCAL idle_in_transaction_session_timeout = '10s'";

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
            Some(connection) => timeout(self.deadline, self.framed(connection, work)).await,
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

    /// Opens one, so that the first operation need not. What is wrong, that one will say.
    pub(super) async fn open(&self) {
        let _ = timeout(self.deadline, self.pool.acquire()).await;
    }

    /// Does the work, in a transaction where that is needed. One that is left open by an error ends with its connection.
    async fn framed<T, W>(&self, connection: &mut PgConnection, work: W) -> Result<T, sqlx::Error>
    where
        W: for<'c> FnOnce(
            &'c mut PgConnection,
        ) -> futures_util::future::BoxFuture<'c, Result<T, sqlx::Error>>,
    {
        if !self.pooler {
            return work(connection).await;
        }
        sqlx::raw_sql(BEGIN).execute(&mut *connection).await?;
        let value = work(&mut *connection).await?;
        sqlx::raw_sql("COMMIT").execute(connection).await?;
        Ok(value)
    }
}

/// Ends the transaction of a pooled session, and begins another in the same one: what was locked is free.
pub(super) async fn commit_and_go_on(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(format!("COMMIT; {BEGIN}")))
        .execute(connection)
        .await?;
    Ok(())
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
pub(super) struct Slow(pub(super) Duration);
