//! Whether an error is the event's fault or the database's.

use outbox_core::HandlerError;
use sqlx::PgPool;
use sqlx::error::DatabaseError;
use tokio::time::{Instant, timeout};

use crate::begin::Session;

/// Classes of SQLSTATE that say that the server cannot serve now: connection, resources, operator.
const AWAY: [&str; 3] = ["08", "53", "57"];

/// And what of them a statement brings on itself: it was cancelled, by its timeout most likely, or took more temporary space
/// than it may. It would again, and nobody else is held up by that.
const OWN: [&str; 2] = ["57014", "53400"];

/// Whether the database is away, rather than at odds with what it was asked.
fn is_outage(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => {
            true
        }
        sqlx::Error::Database(server) => {
            let code = server.code().unwrap_or_default();
            !OWN.contains(&&*code) && code.get(..2).is_some_and(|class| AWAY.contains(&class))
        }
        _ => false,
    }
}

/// What an error of the handler's own transaction means: nothing is charged to the event while the database is away.
pub(super) fn database_error(error: sqlx::Error) -> HandlerError {
    match is_outage(&error) {
        true => HandlerError::Outage(quiet(error)),
        false => HandlerError::Retry(quiet(error)),
    }
}

/// A connection for a handler's transaction. That none comes free is no fault of the event: it ends before the event's time does,
/// and charges nothing.
pub(super) async fn connection(pool: &PgPool, deadline: Instant) -> Result<Session, HandlerError> {
    let left = deadline.saturating_duration_since(Instant::now());
    match timeout(left - left / 20, Session::acquire(pool)).await {
        Ok(session) => session.map_err(database_error),
        Err(_) => Err(HandlerError::outage(
            "no connection of the pool came free within the handler's time",
        )),
    }
}

/// As [`database_error`], for an error that a handler has passed on: it was made a wish for another try by `?`.
pub(super) fn passed_on(error: HandlerError) -> HandlerError {
    let HandlerError::Retry(cause) = error else {
        return error;
    };
    match cause.downcast_ref::<sqlx::Error>().is_some_and(is_outage) {
        true => HandlerError::Outage(cause),
        false => HandlerError::Retry(cause),
    }
}

/// Without what may quote data: the detail of a conflict names the values.
fn quiet(error: sqlx::Error) -> outbox_core::BoxError {
    match error.as_database_error().map(DatabaseError::message) {
        Some(message) => message.to_owned().into(),
        None => error.into(),
    }
}
