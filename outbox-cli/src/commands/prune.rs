//! Deleting what is settled and past its retention.

use indicatif::ProgressBar;
use serde_json::json;

use crate::cli::{Prune, Target};
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn run(target: &Target, args: &Prune) -> Result<Exit, CliError> {
    let admin = target.admin().await?;
    let what = if args.failed_too {
        "completed, discarded and failed"
    } else {
        "completed and discarded"
    };
    let age = output::time(args.older_than.as_secs_f64());
    output::confirm(
        &format!("delete {what} events settled more than {age} ago?"),
        args.yes,
    )?;
    let mut pruner = admin.pruner(args.older_than).reason(args.reason.as_str());
    if args.failed_too {
        pruner = pruner.failed_too();
    }
    let spinner = ProgressBar::new_spinner().with_message("pruning");
    let pruned = tokio::select! {
        pruned = pruner.run_once() => pruned?,
        _ = tokio::signal::ctrl_c() => {
            eprintln!("interrupted; what was deleted stays deleted");
            return Ok(Exit::Interrupted);
        }
    };
    spinner.finish_and_clear();
    if target.json {
        output::json(&json!({ "deleted": pruned.events }))?;
    } else {
        output::line(&format!("deleted {} events", pruned.events))?;
    }
    Ok(Exit::Success)
}
