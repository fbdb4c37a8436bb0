//! The server: what it is, whose clock is right, and who holds back its cleaning.

use std::time::SystemTime;

use sqlx::{PgConnection, Row};

use super::check::Check;
use super::{Patient, ask, unseen};
use crate::output;

const SKEW_SECS_MAX: f64 = 1.0;

/// Whether it is one that a relay can work with: a standby would refuse the rest.
pub(super) async fn look(
    patient: &Patient<'_>,
    connection: &mut PgConnection,
    checks: &mut Vec<Check>,
) -> Result<bool, sqlx::Error> {
    let row = patient.query("SELECT current_setting('server_version'), current_user::text, current_database()::text, pg_is_in_recovery()")
        .fetch_one(&mut *connection)
        .await?;
    let (version, role, database): (String, String, String) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let evidence = format!("PostgreSQL {version}, database {database}, as role {role}");
    let standby = row.try_get(3)?;
    checks.push(match standby {
        false => Check::ok("server", evidence),
        true => Check::wrong(
            "server",
            format!("{evidence}; it is a standby and takes no writes"),
            "connect to the primary, by an address that follows it: a URL takes one host",
        ),
    });
    checks.push(clock(connection).await?);
    checks.push(
        snapshots(patient, connection)
            .await
            .unwrap_or_else(|error| unseen("snapshots", &error)),
    );
    Ok(!standby)
}

/// Leases and retries go by the database's clock alone; the lag metric compares both.
async fn clock(connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    let now = || {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64()
    };
    let before = now();
    let theirs: f64 = ask(
        connection,
        "SELECT extract(epoch FROM clock_timestamp())::double precision",
    )
    .await?;
    let after = now();
    // Within the round trip, nobody can tell.
    let skew = if theirs < before {
        before - theirs
    } else {
        (theirs - after).max(0.0)
    };
    let evidence = format!(
        "this machine and the server differ by {} at least",
        output::time(skew)
    );
    Ok(match skew > SKEW_SECS_MAX {
        false => Check::ok("clock", "this machine and the server agree".to_owned()),
        true => Check::look(
            "clock",
            evidence,
            "set the clocks by NTP; delivery goes by the server's clock, but outbox_lag_seconds compares both",
        ),
    })
}

/// An old snapshot keeps dead rows alive: claims stay right, and get slower.
async fn snapshots(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    let rows = patient.query(
        "SELECT what, seconds FROM (
            SELECT format('backend %s of %s (%s, %s)', pid, usename, coalesce(nullif(application_name, ''), 'unnamed'), state) AS what,
                extract(epoch FROM clock_timestamp() - xact_start)::double precision AS seconds
            FROM pg_catalog.pg_stat_activity
            WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND pid <> pg_backend_pid()
            UNION ALL
            SELECT format('prepared transaction %s of %s', gid, owner), extract(epoch FROM clock_timestamp() - prepared)::double precision
            FROM pg_catalog.pg_prepared_xacts
            UNION ALL
            SELECT format('replication slot %s, %s transactions behind', slot_name, age(coalesce(xmin, catalog_xmin))),
                CASE WHEN age(coalesce(xmin, catalog_xmin)) > 1000000 THEN float8 'infinity' ELSE 0 END
            FROM pg_catalog.pg_replication_slots WHERE coalesce(xmin, catalog_xmin) IS NOT NULL) AS holder
         WHERE seconds > $1 ORDER BY seconds DESC LIMIT 5",
    )
    .bind(patient.args.max_transaction.as_secs_f64())
    .fetch_all(&mut *connection)
    .await?;
    let mut holders = Vec::new();
    for row in rows {
        let (what, seconds): (String, f64) = (row.try_get(0)?, row.try_get(1)?);
        holders.push(match seconds.is_finite() {
            true => format!("{what}, for {}", output::time(seconds)),
            false => what,
        });
    }
    let row = patient
        .query("SELECT pg_has_role('pg_read_all_stats', 'USAGE'), format('let a superuser run: GRANT pg_read_all_stats TO %I', current_user)")
        .fetch_one(connection)
        .await?;
    Ok(held_back(&holders, row.try_get(0)?, row.try_get(1)?))
}

/// Without the right to see the sessions of other roles, none that is seen says nothing.
fn held_back(holders: &[String], sees_all: bool, grant: String) -> Check {
    const NAME: &str = "snapshots";
    const UNSEEN: &str = "cannot see the transactions of other roles";
    let remedy = "end it: pg_terminate_backend(PID), ROLLBACK PREPARED, or drop the slot; set idle_in_transaction_session_timeout";
    let held = format!("held back by {}", holders.join("; "));
    match (holders.is_empty(), sees_all) {
        (true, true) => Check::ok(
            NAME,
            "no transaction is old enough to keep dead rows from being cleaned",
        ),
        (true, false) => Check::hidden(NAME, UNSEEN, grant),
        (false, true) => Check::look(NAME, held, remedy),
        (false, false) => Check::look(NAME, format!("{held}; {UNSEEN}"), format!("{remedy}; {grant}")),
    }
}
