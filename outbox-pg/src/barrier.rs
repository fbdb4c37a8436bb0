//! Waiting until events are delivered.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox_core::{EventId, SourceError};
use sqlx::{PgPool, Row};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::Names;
use crate::error::source_error;
use crate::sql::Sql;

/// Between two looks at first, and at most: what is delivered at once is seen at once.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// As good as for ever, and still an instant that the clock can name.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400 * 365 * 30);

/// How far the delivery of an event has come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryState {
    /// Every handler has succeeded.
    Completed,
    /// It was given up, for this reason.
    Failed(String),
    /// It is still to be delivered.
    Pending,
    /// It is not there: not committed yet, or completed and deleted, as by
    /// [`delete_completed`](crate::PgSourceBuilder::delete_completed).
    Missing,
}

impl DeliveryState {
    fn is_final(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_))
    }
}

/// Waits until events are completed or failed, or `timeout` is over, and returns the state of each, in the order of `ids`.
///
/// One that was there and is not any more is not waited for. One that was deleted before the first look cannot be told from one
/// that is yet to be committed.
///
/// For tests, and for requests whose answer has to show what their events did. It looks at the outbox itself, whichever
/// relay delivers and wherever that runs; it takes no part in the delivery. Commit before waiting.
///
/// # Errors
/// [`SourceError`] when the database cannot be reached or refuses.
///
/// # Cancel safety
/// Reads only.
pub async fn wait_delivered(
    pool: &PgPool,
    names: &Names,
    ids: &[EventId],
    timeout: Duration,
) -> Result<Vec<DeliveryState>, SourceError> {
    let look = Sql::new(names, include_str!("../sql/delivery.sql"));
    let deadline = Instant::now() + timeout.min(TIMEOUT_MAX);
    let mut open: Vec<Uuid> = ids.iter().map(EventId::as_uuid).collect();
    let mut states: HashMap<Uuid, DeliveryState> = HashMap::with_capacity(ids.len());
    let mut pause = PAUSE_MIN;
    loop {
        let failed = |error| source_error("wait for deliveries", error);
        let rows = look
            .query()
            .bind(open.clone())
            .fetch_all(pool)
            .await
            .map_err(failed)?;
        let mut gone: HashSet<Uuid> = open.iter().copied().collect();
        for row in &rows {
            let status: &str = row.try_get(1).map_err(failed)?;
            let state = match status {
                "completed" => DeliveryState::Completed,
                "failed" => DeliveryState::Failed(row.try_get(2).map_err(failed)?),
                _ => DeliveryState::Pending,
            };
            let id = row.try_get(0).map_err(failed)?;
            gone.remove(&id);
            states.insert(id, state);
        }
        // It was seen before, or it may come yet.
        gone.retain(|id| states.remove(id).is_some());
        open.retain(|id| !gone.contains(id) && !states.get(id).is_some_and(DeliveryState::is_final));
        let now = Instant::now();
        if open.is_empty() || now >= deadline {
            let state = |id: &EventId| states.get(&id.as_uuid()).cloned();
            return Ok(ids
                .iter()
                .map(|id| state(id).unwrap_or(DeliveryState::Missing))
                .collect());
        }
        sleep_until((now + pause).min(deadline)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
