//! Locks on the tables: who keeps claims, and perhaps publishers, from them.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::Patient;
use super::check::Check;
use crate::output;

const NAME: &str = "table lock";

/// What a claim takes. Whoever does not get it within that time keeps relays waiting, too.
const TRY: &str = "SET LOCAL lock_timeout = '2s'; \
    LOCK TABLE \"outbox\".\"outbox\", \"outbox\".\"outbox_lease\" IN ROW EXCLUSIVE MODE";

/// Who has a lock beside which there is no claim; else who waits for one, and lets nobody pass meanwhile.
const HOLDER: &str = "SELECT held.pid, held.granted, held.mode, held.relation::regclass::text,
        format('%s (%s, %s)', usename, coalesce(nullif(application_name, ''), 'unnamed'), coalesce(state, 'state hidden')),
        extract(epoch FROM clock_timestamp() - coalesce(xact_start, waitstart))::double precision,
        array_to_string(pg_blocking_pids(held.pid), ', ')
    FROM pg_catalog.pg_locks AS held LEFT JOIN pg_catalog.pg_stat_activity AS session ON session.pid = held.pid
    WHERE held.locktype = 'relation'
        AND held.relation IN ('\"outbox\".\"outbox\"'::regclass, '\"outbox\".\"outbox_lease\"'::regclass)
        AND held.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND held.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
    ORDER BY held.granted DESC, held.waitstart LIMIT 1";

/// Whether further checks would get an answer. Says nothing where the schema or the role is not as it should be.
pub(super) async fn look(
    patient: &Patient<'_>,
    connection: &mut PgConnection,
    checks: &mut Vec<Check>,
) -> Result<bool, sqlx::Error> {
    let mut attempt = connection.begin().await?;
    let tried = sqlx::raw_sql(AssertSqlSafe(patient.names.render(TRY)))
        .execute(&mut *attempt)
        .await;
    // Gives the locks back at once.
    attempt.rollback().await?;
    match tried {
        Ok(_) => checks.push(Check::ok(NAME, "nobody keeps it from the claims")),
        Err(error) if code(&error) == "55P03" => {
            checks.push(kept(patient, connection).await?);
            return Ok(false);
        }
        Err(sqlx::Error::Database(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(true)
}

fn code(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|error| error.code());
    code.unwrap_or_default().into_owned()
}

async fn kept(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    let Some(row) = patient.query(HOLDER).fetch_optional(connection).await? else {
        let evidence = "could not be had within 2 s, from somebody who has just given it back";
        return Ok(Check::look(NAME, evidence, "ask again: outbox doctor"));
    };
    let (pid, granted): (Option<i32>, bool) = (row.try_get(0)?, row.try_get(1)?);
    let (mode, table): (String, String) = (row.try_get(2)?, row.try_get(3)?);
    let (who, age): (String, Option<f64>) = (row.try_get(4)?, row.try_get(5)?);
    let before: String = row.try_get(6)?;
    let Some(pid) = pid else {
        return Ok(Check::wrong(
            NAME,
            format!("a prepared transaction has {mode} on {table}: no relay claims"),
            "end it: COMMIT PREPARED or ROLLBACK PREPARED, by its name in pg_prepared_xacts",
        ));
    };
    let does = match granted {
        true => "has".to_owned(),
        false => format!("waits behind backend {before} for"),
    };
    let age = age.map(|age| format!(" (its transaction began {} ago)", output::time(age)));
    let end = if granted { pid.to_string() } else { before };
    Ok(Check::wrong(
        NAME,
        format!(
            "backend {pid} of {who} {does} {mode} on {table}{}: no relay claims",
            age.unwrap_or_default()
        ),
        format!(
            "let it end, or SELECT pg_terminate_backend({end}); a change of the table that has to wait is best made with a \
             lock_timeout"
        ),
    ))
}
