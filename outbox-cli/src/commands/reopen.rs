//! Completed events whose handler was missing: failed, so that a redrive delivers them again.

use outbox::EventType;
use serde_json::json;
use sqlx::{AssertSqlSafe, Row};

use crate::cli::{Reopen, Target};
use crate::connection::Part;
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn run(target: &Target, args: &Reopen) -> Result<Exit, CliError> {
    let event_type = EventType::new(args.event_type.clone())?;
    // Checks the role's rights, as every other command does.
    drop(target.admin().await?);
    let (pool, names) = (target.pool(Part::Relay)?, target.names()?);
    let millis = args.newer_than.as_millis() as f64;
    let count = "SELECT count(*) FROM \"outbox\".\"outbox\" WHERE status = 'completed' AND event_type = $1 \
                 AND processed_at > clock_timestamp() - $2 * interval '1 millisecond'";
    let row = sqlx::query(AssertSqlSafe(names.render(count)))
        .persistent(false)
        .bind(event_type.as_str())
        .bind(millis)
        .fetch_one(&mut *pool.begin().await?)
        .await?;
    let events: i64 = row.try_get(0)?;
    if args.dry_run || events == 0 {
        return say(target, args, events, args.dry_run);
    }
    output::confirm(
        &format!("reopen {events} completed events, for every handler of theirs to be redriven?"),
        args.yes,
    )?;
    let reopen = "SELECT \"outbox\".\"outbox_reopen\"($1, $2 * interval '1 millisecond', $3, $4)";
    // Behind a pooler in transaction mode, only a transaction keeps to one session.
    let mut transaction = pool.begin().await?;
    let row = sqlx::query(AssertSqlSafe(names.render(reopen)))
        .persistent(false)
        .bind(event_type.as_str())
        .bind(millis)
        .bind(args.reason.as_str())
        .bind(target.actor_name())
        .fetch_one(&mut *transaction)
        .await?;
    transaction.commit().await?;
    say(target, args, row.try_get(0)?, false)
}

fn say(target: &Target, args: &Reopen, events: i64, dry_run: bool) -> Result<Exit, CliError> {
    if target.json {
        output::json(&json!({"events": events, "dry_run": dry_run}))?;
    } else if dry_run {
        output::line(&format!("would reopen {events} events"))?;
    } else if events == 0 {
        output::line("nothing to reopen")?;
    } else {
        output::line(&format!(
            "{events} events are failed now, with the error \"reopened\"; deliver them with: \
             outbox redrive --type {} --error reopened",
            output::short(&args.event_type, 200)
        ))?;
    }
    Ok(Exit::Success)
}
