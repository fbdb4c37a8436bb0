//! Waiting until events are delivered.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox_core::{EventId, SourceError};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use tokio::time::{Instant, sleep_until, timeout_at};
use uuid::Uuid;

use crate::Names;
use crate::error::source_error;
use crate::sql::Sql;

/// Between two looks at first, and at most: what is delivered at once is seen at once.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// What the first look is given in any case: a timeout of zero asks how things stand.
const FIRST_LOOK_MIN: Duration = Duration::from_secs(2);
/// And the last one, which begins when the time is over: asked any earlier, it would miss what happens until then.
const LAST_LOOK: Duration = Duration::from_millis(100);
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
/// The timeout bounds all of it, the wait for a connection of the pool included; the first look alone may take two seconds
/// in any case, so a timeout of zero asks how things stand. When the time is over, the states are those of the last look that
/// was answered; the last begins when the time is over, and may take another tenth of a second.
///
/// One that was there and is not any more is not waited for. One that was deleted before the first look cannot be told from one
/// that is yet to be committed.
///
/// For tests, and for requests whose answer has to show what their events did. It looks at the outbox itself, whichever
/// relay delivers and wherever that runs; it takes no part in the delivery. Commit before waiting.
///
/// # Errors
/// [`SourceError`] when the database cannot be reached or refuses, or has answered no look when the time is over.
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
    let (mut pause, mut looked) = (PAUSE_MIN, false);
    let mut began = Instant::now();
    let mut patience = deadline.max(began + FIRST_LOOK_MIN);
    while let Ok(found) = timeout_at(patience, look_at(&look, pool, &open)).await {
        (looked, patience) = (true, deadline + LAST_LOOK);
        let mut gone: HashSet<Uuid> = open.iter().copied().collect();
        for (id, state) in found.map_err(failed)? {
            gone.remove(&id);
            states.insert(id, state);
        }
        // It was seen before, or it may come yet.
        gone.retain(|id| states.remove(id).is_some());
        open.retain(|id| !gone.contains(id) && !states.get(id).is_some_and(DeliveryState::is_final));
        if open.is_empty() || began >= deadline {
            break;
        }
        sleep_until((Instant::now() + pause).min(deadline)).await;
        began = Instant::now();
        pause = (pause * 2).min(PAUSE_MAX);
    }
    if !looked {
        let cause = format!("no answer within {} s", timeout.max(FIRST_LOOK_MIN).as_secs_f64());
        return Err(SourceError::unavailable(OPERATION, cause));
    }
    let state = |id: &EventId| states.get(&id.as_uuid()).cloned();
    Ok(ids
        .iter()
        .map(|id| state(id).unwrap_or(DeliveryState::Missing))
        .collect())
}

const OPERATION: &str = "wait for deliveries";

fn failed(error: sqlx::Error) -> SourceError {
    source_error(OPERATION, error)
}

/// What is there of these events.
async fn look_at(look: &Sql, pool: &PgPool, ids: &[Uuid]) -> Result<Vec<(Uuid, DeliveryState)>, sqlx::Error> {
    let rows = look.query().bind(ids.to_vec()).fetch_all(pool).await?;
    let state = |row: &PgRow| {
        let state = match row.try_get(1)? {
            "completed" => DeliveryState::Completed,
            "failed" => DeliveryState::Failed(row.try_get(2)?),
            _ => DeliveryState::Pending,
        };
        Ok((row.try_get(0)?, state))
    };
    rows.iter().map(state).collect()
}
