//! What stands where.

use std::io::IsTerminal;

use outbox::admin::{Block, OutboxStatus};

use crate::cli::{Status, Target};
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn run(target: &Target, args: &Status) -> Result<Exit, CliError> {
    let admin = target.admin().await?;
    if !args.watch {
        show(target, &admin.status().await?)?;
        return Ok(Exit::Success);
    }
    let clears = !target.json && std::io::stdout().is_terminal();
    let watching = async {
        loop {
            let status = admin.status().await?;
            if clears {
                // Home, and clear what is below: no flicker.
                output::line("\u{1b}[H\u{1b}[J")?;
            }
            if !show(target, &status)? {
                return Ok(Exit::Success);
            }
            tokio::time::sleep(args.every).await;
        }
    };
    tokio::select! {
        ended = watching => ended,
        // A query that waits for a lock does not keep anybody here.
        _ = tokio::signal::ctrl_c() => Ok(Exit::Success),
    }
}

/// Whether anybody still reads.
fn show(target: &Target, status: &OutboxStatus) -> Result<bool, CliError> {
    let text = match target.json {
        true => serde_json::to_string_pretty(status)?,
        false => text(status),
    };
    output::is_read(&text)
}

fn text(status: &OutboxStatus) -> String {
    let row = |name: &str, n: u64, what: &str| vec![name.to_owned(), count(n, status.cap), what.to_owned()];
    let oldest = match status.oldest_seconds > 0.0 {
        true => format!("one has been due for {}", output::time(status.oldest_seconds)),
        false => "none could run now".to_owned(),
    };
    let rows = [
        row(
            "pending",
            status.pending(),
            if status.pending() > 0 { &oldest } else { "" },
        ),
        row("  fresh", status.fresh, "met no obstacle yet"),
        row("  scheduled", status.scheduled, "not due yet"),
        row("  waiting", status.waiting, "tried, released, redriven or lost"),
        row("  held", status.held, "behind another event of their key"),
        row("  barred", status.barred, "their type may not run now"),
        row("retrying", status.retrying, "of the pending ones, failed before"),
        row(
            "in flight",
            status.in_flight,
            &format!(
                "in {} claims, {} of them over",
                status.leases, status.expired_leases
            ),
        ),
        row("failed", status.failed, "wait for an operator"),
        row("discarded", status.discarded, "given up"),
    ];
    let mut text = output::table(&["", "events", ""], rows);
    if !status.types.is_empty() {
        let rows = status.types.iter().map(|of| {
            vec![
                output::short(&of.event_type, 60),
                of.pending.to_string(),
                of.failed.to_string(),
            ]
        });
        text = format!(
            "{text}\n\n{}",
            output::table(&["type", "pending", "failed"], rows)
        );
    }
    if !status.blocks.is_empty() {
        let rows = status.blocks.iter().map(|block| {
            vec![
                block.scope.clone(),
                output::short(&block.tenant_id, 30),
                output::short(&block.name, 60),
                block.reason.clone(),
                output::time(block.for_seconds),
                failed_events(block),
            ]
        });
        text = format!(
            "{text}\n\n{}",
            output::table(&["blocked", "tenant", "name", "by", "for", "event"], rows)
        );
    }
    text
}

/// The failed events for which a key waits: the first, and how many more.
fn failed_events(block: &Block) -> String {
    let first = block.event_id.map(|id| id.to_string()).unwrap_or_default();
    match block.events.saturating_sub(1) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn count(n: u64, cap: u64) -> String {
    if n >= cap {
        format!("{cap} or more")
    } else {
        n.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_waits_for_several_events_shows_how_many() {
        let shown = |event_id: Option<&str>, events: u64| {
            let block = serde_json::json!({
                "scope": "key", "tenant_id": "", "name": "k", "reason": "parked", "for_seconds": 1.0,
                "event_id": event_id, "events": events,
            });
            failed_events(&serde_json::from_value(block).unwrap())
        };
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";

        assert_eq!(shown(None, 0), "");
        assert_eq!(shown(Some(id), 1), id);
        assert_eq!(shown(Some(id), 3), format!("{id} and 2 more"));
    }
}
