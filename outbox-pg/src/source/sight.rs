//! Whether the role still sees every event.
//!
//! Tenants can be isolated under a running relay. A role that is bound by their policy, as the owner is, then finds nothing
//! any more, and every claim of its says so as if there were nothing. So a relay that finds nothing asks now and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox_core::SourceError;
use sqlx::Row;
use tokio::time::Instant;

use super::StartError;
use super::session::Sessions;
use crate::sql::Sql;

/// How long an answer holds.
const HOLDS: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Sight {
    sees_all: Sql,
    role: String,
    table: String,
    remedy: String,
    born: Instant,
    /// When it last saw everything, in milliseconds after `born`.
    clear_ms: AtomicU64,
}

impl Sight {
    /// Of a role that has just been seen to see everything. `remedy` is the statement that mends it.
    pub(super) fn new(sees_all: Sql, role: String, table: String, remedy: String) -> Self {
        Self {
            sees_all,
            role,
            table,
            remedy,
            born: Instant::now(),
            clear_ms: AtomicU64::new(0),
        }
    }

    /// Asks if the last good answer is old. A bad one is old at once.
    pub(super) async fn check(&self, sessions: &Sessions) -> Result<(), SourceError> {
        let clear = Duration::from_millis(self.clear_ms.load(Ordering::Relaxed));
        let now = self.born.elapsed();
        if now.saturating_sub(clear) < HOLDS {
            return Ok(());
        }
        let query = self.sees_all.clone();
        let sees_all: bool = sessions
            .run("claim", |connection| {
                Box::pin(async move { query.query().fetch_one(connection).await?.try_get(0) })
            })
            .await?;
        if !sees_all {
            return Err(SourceError::misconfigured("claim", self.blind()));
        }
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.clear_ms.store(now, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn blind(&self) -> StartError {
        StartError::Blind {
            role: self.role.clone(),
            table: self.table.clone(),
            remedy: self.remedy.clone(),
        }
    }
}
