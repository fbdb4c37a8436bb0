//! Moving the low-water mark while events flow; the rule stands in the migration of the mark.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox_core::SourceError;
use sqlx::Row;
use tokio::sync::Notify;

use super::session::Sessions;
use crate::sql::Sql;

/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(200);
/// After so many claimed events there is no such wait: a claim that no lease tells where to go on passes over what was settled since.
const MANY: u64 = 5_000;
/// How long to wait for those who may still write, at first; settlements of relays, mostly, which end soon.
const MOMENT: Duration = Duration::from_millis(5);
/// How often to look for what nothing else would find.
const SWEEP: Duration = Duration::from_secs(600);

/// The task that moves the mark.
#[derive(Debug, Clone)]
pub(super) struct Marker {
    pub(super) sessions: Sessions,
    pub(super) candidate: Sql,
    pub(super) move_to: Sql,
    pub(super) sweep: Sql,
    pub(super) flow: Arc<Flow>,
}

/// What the marker knows of claims: without any there is nothing to move past.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Set when events were claimed.
    some: Notify,
    /// Set when many were claimed.
    many: Notify,
    /// How many, since it was last looked at.
    claimed: AtomicU64,
}

impl Flow {
    pub(super) fn claimed(&self, events: usize) {
        if events == 0 {
            return;
        }
        let events = u64::try_from(events).unwrap_or(u64::MAX);
        let before = self.claimed.fetch_add(events, Ordering::Relaxed);
        self.some.notify_one();
        if before.saturating_add(events) >= MANY {
            self.many.notify_one();
        }
    }

    /// Waits for claims after the last call.
    async fn next(&self) {
        self.some.notified().await;
        self.claimed.store(0, Ordering::Relaxed);
    }

    /// Returns after the pause, or when many events have been claimed.
    async fn pause(&self) {
        // An old notice of many may be waiting: that only makes for one look more.
        let _ = tokio::time::timeout(PAUSE, self.many.notified()).await;
    }
}

impl Marker {
    /// Moves the mark for ever. Errors are left to the relay's own claims to report; here they only mean: later.
    /// `unswept`: there was more to sweep than the sweep at the start did.
    pub(super) async fn run(self, unswept: bool) {
        let mut sweeps = tokio::time::interval_at(tokio::time::Instant::now() + SWEEP, SWEEP);
        // To follow may have to wait for a publisher; what only a sweep finds need not.
        if unswept {
            self.sweep_all().await;
        }
        // Past what was settled elsewhere, rows that were brought along say: claims pass over it until then.
        self.follow().await;
        loop {
            tokio::select! {
                () = self.flow.next() => self.follow().await,
                _ = sweeps.tick() => self.sweep_all().await,
            }
            self.flow.pause().await;
        }
    }

    async fn follow(&self) {
        if let Err(error) = self.advance().await {
            tracing::debug!(%error, "outbox_mark_not_moved");
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
        let mut pause = MOMENT;
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
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE);
        }
    }

    async fn sweep_all(&self) {
        loop {
            match self.sweep().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    tracing::debug!(%error, "outbox_sweep_failed");
                    return;
                }
            }
        }
    }

    /// Looks for events that nothing else would find, a part at a time, and returns whether there is more to look at. There are
    /// none unless rows or numbers were changed by hand, or a dump was restored.
    pub(super) async fn sweep(&self) -> Result<bool, SourceError> {
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
            tracing::error!(below, stranded, "outbox_sweep_mended");
        }
        row.try_get(2).map_err(read)
    }
}
