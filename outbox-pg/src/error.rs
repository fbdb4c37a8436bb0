//! What an error of the database means for the relay.

use outbox_core::{BoxError, SourceError};

/// What a server said, without what may quote data.
#[derive(Debug, thiserror::Error)]
#[error("{message} (SQLSTATE {code})")]
struct ServerError {
    code: String,
    message: String,
}

/// Classes of SQLSTATE whose messages speak of names, rights and the server, never of values:
/// connection, what a server or a standby cannot do, transaction state, authorisation, names and rights, resources, operator, system.
const PLAIN_CLASSES: [&str; 13] = [
    "08", "0A", "25", "28", "3D", "3F", "40", "42", "53", "55", "57", "58", "XX",
];

/// Classes that go away only when somebody changes the set-up: transaction state (our isolation check),
/// authorisation, unknown database or schema, missing relation, function or right.
const SETUP_CLASSES: [&str; 5] = ["25", "28", "3D", "3F", "42"];

/// Classes that are about the values of the statement: data, and integrity.
const VALUE_CLASSES: [&str; 2] = ["22", "23"];

/// There is no connection.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {address}")]
struct Unreachable {
    address: String,
    source: BoxError,
}

/// Makes an error of one kind.
type Kind = fn(&'static str, BoxError) -> SourceError;

/// Sorts an error into what waiting can cure and what it cannot.
pub(crate) fn source_error(operation: &'static str, error: sqlx::Error) -> SourceError {
    let (kind, cause) = sorted(error);
    kind(operation, cause)
}

/// As [`source_error`], for a connection that could not be made, with where to.
pub(crate) fn connect_error(operation: &'static str, address: String, error: sqlx::Error) -> SourceError {
    let (kind, source) = sorted(error);
    kind(operation, Unreachable { address, source }.into())
}

fn sorted(error: sqlx::Error) -> (Kind, BoxError) {
    let sqlx::Error::Database(server) = &error else {
        return (SourceError::unavailable, error.into());
    };
    let code = server.code().unwrap_or_default().into_owned();
    let class = code.get(..2).unwrap_or_default();
    let message = match PLAIN_CLASSES.contains(&class) {
        true => server.message().to_owned(),
        false => "the server refused the statement".to_owned(),
    };
    let kind: Kind = match class {
        _ if SETUP_CLASSES.contains(&class) => SourceError::misconfigured,
        _ if VALUE_CLASSES.contains(&class) => SourceError::refused,
        _ => SourceError::unavailable,
    };
    (kind, ServerError { code, message }.into())
}
