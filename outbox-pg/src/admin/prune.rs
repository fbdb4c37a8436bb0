//! Deleting what is settled and past its retention.

use std::time::Duration;

use outbox_core::{ConfigError, SourceError};
use sqlx::Row;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::PgAdmin;
use crate::error::source_error;
use crate::sql::Sql;

/// Deletes settled events past their retention, in the background or once.
///
/// Goes through the table page by page, a few hundred in a statement, and needs no index. It blocks neither publishing
/// nor claiming. Completed events go when their retention is over, discarded ones too; other dead letters stay until an
/// operator has decided, unless [`failed_too`](Self::failed_too) is set. With an event its id is forgotten: published
/// again, it is a new event. A pass that deletes something leaves a row in the audit.
#[derive(Debug, Clone)]
#[must_use = "a pruner does nothing until it is run"]
pub struct PgPruner {
    admin: PgAdmin,
    statement: Sql,
    retention: Duration,
    failed_too: bool,
    reason: String,
    pages: u32,
    every: Duration,
}

/// What one pass deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// How many events.
    pub events: u64,
}

/// A pruner in the background. Ends it when dropped; a statement under way is finished by the server.
#[derive(Debug)]
#[must_use = "dropping the handle ends the pruner"]
pub struct PrunerHandle {
    _stop: DropGuard,
}

impl PgAdmin {
    /// Deletes settled events this long after they were settled.
    pub fn pruner(&self, retention: Duration) -> PgPruner {
        let text = "SELECT deleted, next_page, audit FROM \"outbox\".\"outbox_prune\"(\
                    $1 * interval '1 millisecond', $2, $3, $4, $5, $6, $7)";
        PgPruner {
            statement: Sql::new(&self.names, text).unprepared(),
            admin: self.clone(),
            retention,
            failed_too: false,
            reason: String::new(),
            pages: 512,
            every: Duration::from_secs(600),
        }
    }
}

impl PgPruner {
    /// Deletes failed events too that nobody discarded. One that an ordering key waits for stays in any case.
    pub fn failed_too(mut self) -> Self {
        self.failed_too = true;
        self
    }

    /// Sets why, for the audit. Defaults to nothing.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Sets how many pages of the table one statement goes through. Defaults to 512, which is 4 MiB.
    pub fn pages(mut self, pages: u32) -> Self {
        self.pages = pages;
        self
    }

    /// Sets the pause between two passes in the background. Defaults to 10 minutes.
    pub fn every(mut self, every: Duration) -> Self {
        self.every = every;
        self
    }

    /// Goes through the table once.
    ///
    /// # Errors
    /// [`SourceError`] when the database cannot be reached or refuses. What was deleted until then stays deleted.
    ///
    /// # Cancel safety
    /// What was deleted stays deleted.
    pub async fn run_once(&self) -> Result<Pruned, SourceError> {
        let failed = |error| source_error("prune", error);
        let mut page = Some(0_i64);
        let mut audit: Option<i64> = None;
        let mut events = 0;
        while let Some(from) = page {
            let query = self
                .statement
                .query()
                .bind(self.retention.as_millis() as f64)
                .bind(self.failed_too)
                .bind(from)
                .bind(i32::try_from(self.pages.max(1)).unwrap_or(i32::MAX))
                .bind(self.reason.clone())
                .bind(self.admin.actor.clone())
                .bind(audit);
            let row = self.admin.fetch_one(query).await.map_err(failed)?;
            let deleted: i32 = row.try_get(0).map_err(failed)?;
            events += u64::try_from(deleted).unwrap_or(0);
            page = row.try_get(1).map_err(failed)?;
            audit = row.try_get(2).map_err(failed)?;
        }
        Ok(Pruned { events })
    }

    /// Goes through the table again and again, until the handle is dropped. An error is logged, and the next pass tries
    /// again. Several at once do each other no harm, only the same work.
    ///
    /// # Errors
    /// [`ConfigError`] when the pause between passes is zero.
    pub fn spawn(self) -> Result<PrunerHandle, ConfigError> {
        if self.every.is_zero() {
            return Err(ConfigError::new("every", "0", "it takes more than zero"));
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(self.run()).await });
        Ok(PrunerHandle {
            _stop: stop.drop_guard(),
        })
    }

    async fn run(self) {
        loop {
            match self.run_once().await {
                Ok(Pruned { events: 0 }) => {}
                Ok(pruned) => tracing::debug!(events = pruned.events, "outbox_pruned"),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "outbox_prune_failed");
                }
            }
            tokio::time::sleep(self.every).await;
        }
    }
}
