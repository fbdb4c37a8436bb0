//! The events themselves: late ones, failed ones, blocked ones, and types that nobody handles.

use outbox::admin::{OutboxStatus, PgAdmin};
use sqlx::{PgConnection, Row};

use super::Patient;
use super::check::Check;
use crate::exit::CliError;
use crate::output;

pub(super) async fn look(
    patient: &Patient<'_>,
    connection: &mut PgConnection,
    checks: &mut Vec<Check>,
    pooled: bool,
) -> Result<(), CliError> {
    let status = PgAdmin::new(patient.pool.clone(), &patient.names)
        .status()
        .await?;
    let relays = relays(connection).await?;
    checks.push(relay(&status, relays, pooled));
    checks.push(lag(patient, &status, relays));
    checks.push(mark(patient, connection).await?);
    checks.push(failed(patient, connection, &status).await?);
    checks.push(blocks(&status));
    checks.push(handlers(patient, connection).await?);
    Ok(())
}

/// Sessions by the name that relays give theirs. Another role's are shown by name, too.
async fn relays(connection: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let sql = "SELECT count(DISTINCT coalesce(client_addr::text, 'local')) FROM pg_catalog.pg_stat_activity \
               WHERE application_name = 'outbox-relay' AND datname = current_database()";
    super::ask(connection, sql).await
}

/// For so long, events may wait for a relay that nobody sees: more than it takes to poll.
const UNSEEN_SECS_MAX: f64 = 15.0;

/// Claims whose time is over are nobody's any more: a relay that was killed leaves some.
fn held(status: &OutboxStatus) -> u64 {
    status.leases.saturating_sub(status.expired_leases)
}

/// Behind a pooler, sessions are called after whoever used them last: there, only waiting events tell.
fn relay(status: &OutboxStatus, relays: i64, pooled: bool) -> Check {
    let sessions = match relays {
        0 => "no session is called outbox-relay".to_owned(),
        n => format!("sessions called outbox-relay from {n} addresses"),
    };
    let evidence = format!("{sessions}, {} claims held", held(status));
    match (relays, held(status), status.pending()) {
        (0, 0, pending) if pending > 0 && (!pooled || status.oldest_seconds > UNSEEN_SECS_MAX) => {
            Check::wrong(
                "relay",
                format!("{evidence}, and events wait"),
                "start the relay: look for the log line outbox_relay_starting, or why it refused; it connects by JOBS_DB_URL, else DATABASE_URL",
            )
        }
        (0, 0, _) => Check::look(
            "relay",
            evidence,
            "no relay seems to run: fine if it works behind a pooler",
        ),
        _ => Check::ok("relay", evidence),
    }
}

fn lag(patient: &Patient<'_>, status: &OutboxStatus, relays: i64) -> Check {
    const NAME: &str = "lag";
    let limit = patient.args.max_lag.as_secs_f64();
    let evidence = format!(
        "{} events pending, one has been due for {} (limit {}); {} fresh, {} waiting, {} held, {} barred, {} in flight",
        status.pending(),
        output::time(status.oldest_seconds),
        output::time(limit),
        status.fresh,
        status.waiting,
        status.held,
        status.barred,
        status.in_flight,
    );
    if status.oldest_seconds <= limit {
        return Check::ok(NAME, evidence);
    }
    let remedy = if held(status) == 0 && relays == 0 {
        "no relay works: see above"
    } else if held(status) == 0 {
        "a relay is connected, and holds no claim: see whether its readiness is green and its log says outbox_poll_failed, and start it anew; or it is the relay of another outbox of this database, and this one's is missing"
    } else if status.retrying > status.fresh {
        "most have failed and are tried again: outbox list --status pending shows their errors"
    } else {
        "more is published than delivered: raise OUTBOX_CONCURRENCY and OUTBOX_BATCH_SIZE, start another relay, or look for a slow handler in dispatcher_handler_seconds"
    };
    Check::wrong(NAME, evidence, remedy)
}

/// Claims and gauges begin at the mark: what is pending below it is seen by neither.
async fn mark(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    const NAME: &str = "mark";
    let sql = "SELECT count(*) FROM \"outbox\".\"outbox_below_mark\"((SELECT last_value FROM \"outbox\".\"outbox_mark\"))";
    let below: i64 = patient.query(sql).fetch_one(connection).await?.try_get(0)?;
    if below == 0 {
        return Ok(Check::ok(NAME, "no event is below the low-water mark"));
    }
    Ok(Check::wrong(
        NAME,
        format!("{below} pending events are below the low-water mark, where claims do not look: rows or numbers were changed by hand"),
        patient.names.render("SELECT * FROM \"outbox\".\"outbox_sweep\"() as the relay's role mends it; so does a relay that starts, and each one every ten minutes"),
    ))
}

async fn failed(
    patient: &Patient<'_>,
    connection: &mut PgConnection,
    status: &OutboxStatus,
) -> Result<Check, sqlx::Error> {
    if status.failed == 0 {
        return Ok(Check::ok("failed", "no dead letters"));
    }
    let row = patient
        .query(
            "SELECT event_type, error FROM \"outbox\".\"outbox\" WHERE class = 'failed' AND discarded_at IS NULL \
             ORDER BY seq DESC LIMIT 1",
        )
        .fetch_optional(connection)
        .await?;
    let latest = match row {
        Some(row) => {
            let (event_type, error): (String, Option<String>) = (row.try_get(0)?, row.try_get(1)?);
            format!(
                "; the latest is {}: {}",
                output::short(&event_type, 60),
                output::short(&error.unwrap_or_default(), 120)
            )
        }
        None => String::new(),
    };
    Ok(Check::wrong(
        "failed",
        format!("{} dead letters{latest}", status.failed),
        "outbox list --status failed; mend the cause; then outbox redrive --type TYPE --error TEXT, or discard",
    ))
}

fn blocks(status: &OutboxStatus) -> Check {
    let Some(oldest) = status.blocks.first() else {
        return Check::ok("blocks", "no type and no key is blocked");
    };
    let evidence = format!(
        "{} blocked; the oldest: {} {}{} {} for {}",
        status.blocked,
        oldest.scope,
        output::short(&oldest.name, 60),
        of_tenant(&oldest.tenant_id),
        oldest.reason,
        output::time(oldest.for_seconds),
    );
    Check::look(
        "blocks",
        evidence,
        "outbox resume what was paused or stopped; redrive or discard each event that a key is parked behind (outbox status names the first)",
    )
}

fn of_tenant(tenant_id: &str) -> String {
    match tenant_id {
        "" => String::new(),
        tenant_id => format!(" of tenant {}", output::short(tenant_id, 60)),
    }
}

/// The latest events: by their ids where these sort by time, as the publishers of Rust and SQL make them; and what stands at
/// the table's end, for ids of another kind. Settled events have no index by time.
const LATEST: &str = "
    (SELECT id, tenant_id, event_type, status FROM \"outbox\".\"outbox\"
        WHERE id < (SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp() + interval '1 hour') * 1000)::bigint), 12, '0')
            || repeat('0', 20))::uuid)
        ORDER BY id DESC LIMIT 10000)
    UNION
    (SELECT id, tenant_id, event_type, status FROM \"outbox\".\"outbox\"
        WHERE ctid >= (SELECT format('(%s,0)', greatest(
            pg_relation_size('\"outbox\".\"outbox\"') / current_setting('block_size')::bigint - 256, 0))::tid))";

/// Of the latest events, types that the application does not handle.
async fn handlers(patient: &Patient<'_>, connection: &mut PgConnection) -> Result<Check, sqlx::Error> {
    const NAME: &str = "handlers";
    if patient.args.handled.is_empty() {
        return Ok(Check::skipped(
            NAME,
            "give --handled TYPE,TYPE,… as in the log line outbox_dispatcher_starting, to find types that nobody handles",
        ));
    }
    let rows = patient
        .query(&format!(
            "SELECT event_type, count(*) FILTER (WHERE status = 'completed'), count(*) FROM ({LATEST}) AS latest
             WHERE event_type <> ALL ($1) GROUP BY event_type ORDER BY count(*) DESC LIMIT 10"
        ))
        .bind(patient.args.handled.clone())
        .fetch_all(connection)
        .await?;
    let mut unhandled = Vec::new();
    for row in rows {
        let (event_type, completed, all): (String, i64, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        unhandled.push(format!(
            "{} ({completed} of {all} completed)",
            output::short(&event_type, 60)
        ));
    }
    Ok(match unhandled.is_empty() {
        true => Check::ok(NAME, "every type among the latest events has a handler"),
        false => Check::wrong(
            NAME,
            format!("no handler for {}", unhandled.join(", ")),
            "register the handler, start the relay anew, then: outbox reopen --type TYPE --newer-than TIME, outbox redrive --type TYPE --error reopened",
        ),
    })
}
