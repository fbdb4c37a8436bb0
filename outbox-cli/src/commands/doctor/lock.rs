//! The lock by which claims take turns: who keeps it from them.

use std::time::{Duration, Instant};

use sqlx::{PgConnection, Row};

use super::Patient;
use super::check::Check;
use crate::output;

const NAME: &str = "claim lock";
/// A claim or a step of an action takes it for milliseconds.
const LONG: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(100);

/// Who has it. Whoever waits for it longest is next: while that one stays the same, so does the holder.
const HOLDER: &str = "WITH claims AS (
        SELECT pid, granted, virtualtransaction, waitstart FROM pg_catalog.pg_locks
        WHERE locktype = 'advisory' AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = \"outbox\".\"outbox_lock_number\"(1)
            AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()))
    SELECT pid, concat_ws(' ', pid, coalesce((SELECT min(waitstart)::text FROM claims WHERE NOT granted), virtualtransaction))
    FROM claims WHERE granted LIMIT 1";

/// Looks again and again only while somebody has it.
pub(super) async fn look(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    let began = Instant::now();
    let (mut since, mut before) = (began, String::new());
    while began.elapsed() < 3 * LONG {
        let Some(row) = patient.query(HOLDER).fetch_optional(&mut *connection).await? else {
            break;
        };
        let (pid, holding): (Option<i32>, String) = (row.try_get(0)?, row.try_get(1)?);
        if holding != before {
            (since, before) = (Instant::now(), holding);
        } else if since.elapsed() >= LONG {
            return kept(patient, connection, pid).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(Check::ok(NAME, "nobody keeps it from the claims"))
}

async fn kept(
    patient: &Patient<'_>,
    connection: &mut PgConnection,
    pid: Option<i32>,
) -> Result<Check, sqlx::Error> {
    let least = output::time(LONG.as_secs_f64());
    let Some(pid) = pid else {
        return Ok(Check::wrong(
            NAME,
            format!("a prepared transaction has kept it for {least} at least: no relay claims"),
            "end it: COMMIT PREPARED or ROLLBACK PREPARED, by its name in pg_prepared_xacts",
        ));
    };
    let row = patient
        .query(
            "SELECT format('%s (%s, %s)', usename, coalesce(nullif(application_name, ''), 'unnamed'), coalesce(state, 'state hidden')),
                extract(epoch FROM clock_timestamp() - coalesce(xact_start, state_change))::double precision
             FROM pg_catalog.pg_stat_activity WHERE pid = $1",
        )
        .bind(pid)
        .fetch_optional(connection)
        .await?;
    let (who, age): (String, Option<f64>) = match row {
        Some(row) => (row.try_get(0)?, row.try_get(1)?),
        None => ("a session that has just ended".to_owned(), None),
    };
    let age = age.map(|age| format!(" (its transaction or pause began {} ago)", output::time(age)));
    Ok(Check::wrong(
        NAME,
        format!(
            "backend {pid} of {who} has kept it for {least} at least{}: no relay claims",
            age.unwrap_or_default()
        ),
        format!(
            "SELECT pg_terminate_backend({pid}), unless it is a redrive or a discard by large steps; for the next time, set \
             idle_in_transaction_session_timeout for its role"
        ),
    ))
}
