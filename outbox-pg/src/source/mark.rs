//! Moving the low-water mark while events flow; the rule stands in the migration of the mark.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::SourceError;
use sqlx::Row;
use tokio::sync::Notify;

use super::session::Sessions;
use crate::sql::Sql;

/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// How often to look for what nothing else would find.
const SWEEP: Duration = Duration::from_secs(600);

/// The task that moves the mark.
#[derive(Debug, Clone)]
pub(super) struct Marker {
    pub(super) sessions: Sessions,
    pub(super) candidate: Sql,
    pub(super) move_to: Sql,
    pub(super) sweep: Sql,
    /// Set when events were claimed: without claims there is nothing to move past.
    pub(super) active: Arc<Notify>,
}

impl Marker {
    /// Moves the mark for ever. Errors are left to the relay's own claims to report; here they only mean: later.
    pub(super) async fn run(self) {
        let mut sweeps = tokio::time::interval_at(tokio::time::Instant::now() + SWEEP, SWEEP);
        loop {
            tokio::select! {
                () = self.active.notified() => {
                    if let Err(error) = self.advance().await {
                        tracing::debug!(%error, "outbox_mark_not_moved");
                    }
                }
                _ = sweeps.tick() => {
                    if let Err(error) = self.sweep().await {
                        tracing::debug!(%error, "outbox_sweep_failed");
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads a candidate and moves the mark there once everybody who may still write below it has ended.
    async fn advance(&self) -> Result<(), SourceError> {
        let candidate = self.candidate.clone();
        let row = self
            .sessions
            .run("mark", |connection| {
                Box::pin(async move { candidate.query().fetch_one(connection).await })
            })
            .await?;
        let read = |error| SourceError::unavailable("mark", error);
        let Some(candidate) = row.try_get::<Option<i64>, _>(0).map_err(read)? else {
            return Ok(());
        };
        let writers: Vec<String> = row.try_get(1).map_err(read)?;
        loop {
            let (move_to, writers) = (self.move_to.clone(), writers.clone());
            let done: bool = self
                .sessions
                .run("mark", |connection| {
                    Box::pin(async move {
                        move_to
                            .query()
                            .bind(candidate)
                            .bind(writers)
                            .fetch_one(connection)
                            .await?
                            .try_get(0)
                    })
                })
                .await?;
            if done {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Looks for events that nothing else would find. There are none unless rows or numbers were changed by hand.
    pub(super) async fn sweep(&self) -> Result<(), SourceError> {
        let sweep = self.sweep.clone();
        let row = self
            .sessions
            .run("sweep", |connection| {
                Box::pin(async move { sweep.query().fetch_one(connection).await })
            })
            .await?;
        let read = |error| SourceError::unavailable("sweep", error);
        let (below, stranded): (i64, i64) = (row.try_get(0).map_err(read)?, row.try_get(1).map_err(read)?);
        if below > 0 || stranded > 0 {
            tracing::error!(
                below,
                stranded,
                "outbox_sweep_mended: events that no claim would have found are due again"
            );
        }
        Ok(())
    }
}
