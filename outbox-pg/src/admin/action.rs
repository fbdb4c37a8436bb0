//! Redriving and discarding, step by step.

use std::time::Duration;

use outbox_core::SourceError;
use sqlx::Row;

use super::PgAdmin;

/// Events changed in one step unless set otherwise. A step holds the claim lock for some milliseconds.
const STEP: i32 = 500;
/// How often a step is tried again after a deadlock with a settlement.
const TRIES: u32 = 5;

/// A redrive or a discard under way.
///
/// Every step is a transaction of its own that records how far it came: an action that was interrupted, by whatever,
/// goes on where it stopped with [`PgAdmin::action`]. What fails after the action began is left alone, so it ends.
#[derive(Debug)]
#[must_use = "an action does nothing until it is run"]
pub struct Action {
    admin: PgAdmin,
    number: i64,
    step: i32,
    changed: u64,
}

/// What an action was begun as.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Begun {
    /// `redrive` or `discard`.
    pub verb: String,
    /// Which events, as the SQL functions take it: JSON.
    pub filter: String,
    /// Why.
    pub reason: String,
    /// Who wanted it, as they said.
    pub actor: String,
}

/// How far an action came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Events changed by this handle so far.
    pub changed: u64,
    /// Whether nothing is left to do.
    pub finished: bool,
}

impl Action {
    pub(super) fn new(admin: PgAdmin, number: i64) -> Self {
        Self {
            admin,
            number,
            step: STEP,
            changed: 0,
        }
    }

    /// Its number in the audit table, by which it can be resumed.
    #[must_use]
    pub fn number(&self) -> i64 {
        self.number
    }

    /// Sets how many events one step changes. Defaults to 500; claims wait while a step runs.
    pub fn step_events(mut self, events: u32) -> Self {
        self.step = i32::try_from(events.max(1)).unwrap_or(i32::MAX);
        self
    }

    /// Does one step.
    ///
    /// # Errors
    /// [`SourceError`] when the database cannot be reached or refuses; the step is then done or not, and the next one knows.
    ///
    /// # Cancel safety
    /// The step is done whole or not at all.
    pub async fn step(&mut self) -> Result<Progress, SourceError> {
        let mut tries = 1;
        let row = loop {
            let query = self
                .admin
                .statements
                .act
                .query()
                .bind(self.number)
                .bind(self.step);
            match self.admin.fetch_one(query).await {
                Ok(row) => break row,
                // A settlement takes rows in another order than we do. The database ended one of us.
                Err(error) if is_deadlock(&error) && tries < TRIES => tries += 1,
                Err(error) => return Err(crate::error::source_error("act", error)),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let read = |error| crate::error::source_error("act", error);
        let changed: i32 = row.try_get(0).map_err(read)?;
        self.changed += u64::try_from(changed).unwrap_or(0);
        Ok(Progress {
            changed: self.changed,
            finished: row.try_get(1).map_err(read)?,
        })
    }

    /// Does all steps.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    ///
    /// # Cancel safety
    /// What was done stays done; the action can be resumed.
    pub async fn run(mut self) -> Result<Progress, SourceError> {
        loop {
            let progress = self.step().await?;
            if progress.finished {
                return Ok(progress);
            }
        }
    }
}

fn is_deadlock(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .is_some_and(|code| code == "40P01" || code == "40001")
}
