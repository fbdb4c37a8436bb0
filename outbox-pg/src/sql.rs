//! Statements with the outbox's names put in. The only place that vouches for SQL built at run time.

use std::sync::Arc;

use sqlx::postgres::{PgArguments, PgConnection};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres};

use crate::Names;

/// One statement, safe because [`Names`] are checked and everything else in it is ours.
#[derive(Debug, Clone)]
pub(crate) struct Sql {
    text: Arc<str>,
    prepared: bool,
}

impl Sql {
    /// Puts the names into a statement that was written for the default ones.
    pub(crate) fn new(names: &Names, text: &str) -> Self {
        Self {
            text: Arc::from(names.render(text)),
            prepared: true,
        }
    }

    /// A script in which the names are already.
    pub(crate) fn verbatim(script: &str) -> Self {
        Self {
            text: Arc::from(script),
            prepared: false,
        }
    }

    /// The same statement, prepared anew at each use: poolers in transaction mode know no prepared statements.
    pub(crate) fn unprepared(mut self) -> Self {
        self.prepared = false;
        self
    }

    /// The statement as it is sent.
    pub(crate) fn text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// The statement as a query to bind values to.
    pub(crate) fn query(&self) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(AssertSqlSafe(Arc::clone(&self.text))).persistent(self.prepared)
    }

    /// Runs a script of several statements without values.
    pub(crate) async fn run(&self, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(Arc::clone(&self.text)))
            .execute(connection)
            .await?;
        Ok(())
    }
}
