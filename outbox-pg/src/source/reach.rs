//! The first connection. A pool would try again until its time is up, and then say that its time is up.

use std::time::Duration;

use outbox_core::SourceError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::time::{sleep, timeout};

use super::session::Slow;
use crate::error::connect_error;

/// Between two tries to get into a server that is about to let us in.
const PAUSE: Duration = Duration::from_millis(100);

/// Cannot start up yet, and too many connections: the server is there, and will have room in a moment.
const PASSING: [&str; 2] = ["57P03", "53300"];

/// One connection, or at once why there is none: the server's address and the cause. Only for a server that says that it
/// is about to be ready it waits, as long as the deadline allows.
pub(super) async fn reach(
    options: &PgConnectOptions,
    deadline: Duration,
) -> Result<PgConnection, SourceError> {
    let mut refusal = None;
    let reached = timeout(deadline, async {
        loop {
            match PgConnection::connect_with(options).await {
                Err(error) if passes(&error) => refusal = Some(error),
                done => return done,
            }
            sleep(PAUSE).await;
        }
    })
    .await;
    let error = match reached {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => error,
        Err(_) => refusal.unwrap_or_else(|| sqlx::Error::Io(std::io::Error::other(Slow(deadline)))),
    };
    Err(connect_error("start", address(options), error))
}

fn passes(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| PASSING.contains(&&*code))
}

/// Where the server was looked for.
fn address(options: &PgConnectOptions) -> String {
    let (host, port) = (options.get_host(), options.get_port());
    match options.get_socket() {
        Some(folder) => format!("{} (port {port})", folder.display()),
        None => format!("{host}:{port}"),
    }
}
