//! Transactions on a pool that others use too.

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgPool, Postgres, Transaction};

/// A connection for one transaction.
///
/// A future that is dropped while BEGIN is on its way would leave a connection in the pool that has a transaction open and
/// does not know it: what its next user does would not be committed. So such a connection is closed.
pub(crate) struct Session {
    connection: PoolConnection<Postgres>,
    beginning: bool,
}

impl Session {
    pub(crate) async fn acquire(pool: &PgPool) -> Result<Self, sqlx::Error> {
        Ok(Self {
            connection: pool.acquire().await?,
            beginning: false,
        })
    }

    /// Begins a transaction by this statement.
    pub(crate) async fn begin(
        &mut self,
        statement: &'static str,
    ) -> Result<Transaction<'_, Postgres>, sqlx::Error> {
        self.beginning = true;
        let transaction = self.connection.begin_with(statement).await?;
        self.beginning = false;
        Ok(transaction)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.beginning {
            self.connection.close_on_drop();
        }
    }
}
