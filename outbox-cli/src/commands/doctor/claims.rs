//! Claiming: its plan, its indexes, the cleaning of its tables, and claims that nobody ends.

use sqlx::{Connection, PgConnection, Row};

use super::check::Check;
use super::{Patient, lock, unseen};
use crate::output;

pub(super) async fn look(
    patient: &Patient<'_>,
    connection: &mut PgConnection,
    checks: &mut Vec<Check>,
) -> Result<(), sqlx::Error> {
    checks.push(plan(patient, connection).await?);
    checks.push(
        vacuum(patient, connection)
            .await
            .unwrap_or_else(|error| unseen("autovacuum", &error)),
    );
    checks.push(leases(patient, connection).await?);
    checks.push(lock::look(patient, connection).await?);
    Ok(())
}

/// The claim's search, planned with the settings that the claim function pins.
async fn plan(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    const NAME: &str = "claim plan";
    let mut settings = connection.begin().await?;
    sqlx::raw_sql("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off")
        .execute(&mut *settings)
        .await?;
    let rows = patient
        .query(
            "EXPLAIN SELECT seq, id FROM \"outbox\".\"outbox\" WHERE status = 'pending' AND class = 'fresh' \
             AND seq > (SELECT last_value FROM \"outbox\".\"outbox_mark\") ORDER BY seq LIMIT 100",
        )
        .fetch_all(&mut *settings)
        .await?;
    settings.rollback().await?;
    let lines: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let index = format!("{}_fresh", patient.names.table());
    let used = lines
        .iter()
        .find(|line| line.contains("Index") && line.contains(&index));
    Ok(match used {
        Some(_) => Check::ok(NAME, format!("walks the index {index}")),
        None => Check::wrong(
            NAME,
            format!(
                "does not use the index {index}: {}",
                output::short(&lines.join(" / "), 200)
            ),
            format!(
                "restore the index as the migration 0001 makes it, or: REINDEX INDEX CONCURRENTLY {index}"
            ),
        ),
    })
}

async fn vacuum(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    const NAME: &str = "autovacuum";
    // Of its own, for the role may not be allowed to ask.
    let mut own = connection.begin().await?;
    let rows = patient
        .query(
            "SELECT class.relname::text, coalesce(stat.n_live_tup, 0), coalesce(stat.n_dead_tup, 0),
                coalesce(extract(epoch FROM clock_timestamp() - greatest(stat.last_autovacuum, stat.last_vacuum))::double precision, -1),
                current_setting('autovacuum') = 'off' OR current_setting('track_counts') = 'off' OR EXISTS (
                    SELECT FROM pg_catalog.pg_options_to_table(class.reloptions)
                    WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean)
             FROM pg_catalog.pg_class AS class
             LEFT JOIN pg_catalog.pg_stat_all_tables AS stat ON stat.relid = class.oid
             WHERE class.oid IN ('\"outbox\".\"outbox\"'::regclass, '\"outbox\".\"outbox_lease\"'::regclass)
             ORDER BY class.relname",
        )
        .fetch_all(&mut *own)
        .await?;
    own.commit().await?;
    let (mut facts, mut off, mut behind) = (Vec::new(), false, false);
    for row in rows {
        let (table, live, dead): (String, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (since, disabled): (f64, bool) = (row.try_get(3)?, row.try_get(4)?);
        let last = if since < 0.0 {
            "never".to_owned()
        } else {
            format!("{} ago", output::time(since))
        };
        facts.push(format!(
            "{table}: {dead} dead of {} rows, cleaned {last}",
            live + dead
        ));
        off |= disabled;
        behind |= dead > 50_000 && dead > live;
    }
    let evidence = facts.join("; ");
    Ok(match (off, behind) {
        (true, _) => Check::wrong(
            NAME,
            format!("it is off; {evidence}"),
            "switch it on: in the server's settings (autovacuum and track_counts), or ALTER TABLE … RESET (autovacuum_enabled)",
        ),
        (false, true) => Check::look(
            NAME,
            evidence,
            "if an old snapshot holds it back, end that first; else lower autovacuum_vacuum_scale_factor of the table",
        ),
        (false, false) => Check::ok(NAME, evidence),
    })
}

/// Relays take expired claims back whenever they claim: some that stay mean that none claims.
async fn leases(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    let row = patient
        .query(
            "SELECT count(*), count(*) FILTER (WHERE until < clock_timestamp() - interval '10 seconds'),
                coalesce(sum(cardinality(ids)) FILTER (WHERE until < clock_timestamp() - interval '10 seconds'), 0)::bigint
             FROM \"outbox\".\"outbox_lease\"",
        )
        .fetch_one(connection)
        .await?;
    let (all, over, events): (i64, i64, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(match over {
        0 => Check::ok("claims", format!("{all} held, none over its time")),
        _ => Check::wrong(
            "claims",
            format!(
                "{over} of {all} claims with {events} events are over their time, and no relay takes them back"
            ),
            "no relay claims: start one, and see whether its readiness is green",
        ),
    })
}
