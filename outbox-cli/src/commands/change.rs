//! Redriving and discarding: preview, question, progress, and a number to go on by.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use outbox::admin::{Action, FailedFilter, PgAdmin, Preview};
use outbox::{EventId, EventType, OrderingKey, TenantId};
use serde_json::json;

use crate::cli::{Change, Target};
use crate::exit::{CliError, Exit};
use crate::output;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Redrive,
    Discard,
}

impl Verb {
    fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Discard => "discard",
        }
    }
}

const SAMPLES: u16 = 3;
/// Whoever interrupts does not wait longer, for a lock say.
const MOMENT: Duration = Duration::from_secs(2);

pub(super) async fn run(target: &Target, verb: Verb, args: &Change) -> Result<Exit, CliError> {
    let admin = target.admin().await?;
    if let Some(number) = args.action {
        let action = go_on(&admin, verb, number, args).await?;
        return carry_out(target, verb, action.step_events(args.step), None).await;
    }
    let filter = filter(args)?;
    know(&admin, &args.ids).await?;
    let preview = match verb {
        Verb::Redrive => admin.preview_redrive(&filter, SAMPLES).await?,
        Verb::Discard => admin.preview_discard(&filter, SAMPLES).await?,
    };
    if args.dry_run {
        show(target, verb, &preview)?;
        return Ok(Exit::Success);
    }
    if preview.events == 0 {
        return nothing(target, verb);
    }
    if !args.yes {
        eprintln!("{}", text(verb, &preview));
    }
    output::confirm(&format!("{} {} events?", verb.as_str(), preview.events), args.yes)?;
    let action = begin(&admin, verb, &filter, &args.reason)
        .await?
        .step_events(args.step);
    // Beforehand: whoever loses the connection, or the terminal, is told nothing more.
    let number = action.number();
    let verb_name = verb.as_str();
    eprintln!("action {number}; if anything stops it, go on with: outbox {verb_name} --action {number}");
    carry_out(target, verb, action, Some(preview.events)).await
}

/// An id that no event has is a mistake: better said than passed over.
async fn know(admin: &PgAdmin, ids: &[EventId]) -> Result<(), CliError> {
    if ids.is_empty() {
        return Ok(());
    }
    let events = admin.list_ids(ids).await?;
    let known: HashSet<EventId> = events.iter().map(|event| event.id).collect();
    match ids.iter().find(|id| !known.contains(id)) {
        Some(id) => Err(CliError::NotFound(format!(
            "there is no event {id}; nothing was changed"
        ))),
        None => Ok(()),
    }
}

/// Says that there is nothing to change, in the words in which a change is reported.
fn nothing(target: &Target, verb: Verb) -> Result<Exit, CliError> {
    if target.json {
        output::json(&json!({"action": null, "verb": verb.as_str(), "changed": 0, "finished": true}))?;
    } else {
        output::line(&format!("nothing to {}", verb.as_str()))?;
    }
    Ok(Exit::Success)
}

async fn begin(admin: &PgAdmin, verb: Verb, filter: &FailedFilter, reason: &str) -> Result<Action, CliError> {
    Ok(match verb {
        Verb::Redrive => admin.redrive(filter, reason).await?,
        Verb::Discard => admin.discard(filter, reason).await?,
    })
}

/// The action of that number, if it is what this command line says.
async fn go_on(admin: &PgAdmin, verb: Verb, number: i64, args: &Change) -> Result<Action, CliError> {
    let Some(begun) = admin.begun(number).await? else {
        return Err(no_such_action(number));
    };
    let filter = output::short(&begun.filter, 300);
    let was = format!("action {number} was begun as {} with {filter}", begun.verb);
    if begun.verb != verb.as_str() {
        return Err(CliError::Usage(format!(
            "{was}; go on with: outbox {} --action {number}",
            begun.verb
        )));
    }
    if !args.ids.is_empty() || args.all || picks(args) || !args.reason.is_empty() {
        return Err(CliError::Usage(format!(
            "{was}, and goes on as that: give neither events nor conditions nor a reason beside --action"
        )));
    }
    Ok(admin.action(number))
}

/// Step by step, until it is done or somebody interrupts.
async fn carry_out(
    target: &Target,
    verb: Verb,
    mut action: Action,
    events: Option<u64>,
) -> Result<Exit, CliError> {
    let bar = bar(events);
    let number = action.number();
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let (changed, exit) = loop {
        let step = action.step();
        tokio::pin!(step);
        let (progress, goes_on) = tokio::select! {
            // ORDER: the step first, so that what it did is counted.
            biased;
            progress = &mut step => (progress?, true),
            // The server carries out the step under way in any case: a moment later it is known what it did.
            _ = &mut interrupted => match tokio::time::timeout(MOMENT, step).await {
                Ok(progress) => (progress?, false),
                Err(_) => break (bar.position(), Exit::Interrupted),
            },
        };
        bar.set_position(progress.changed);
        if progress.finished {
            break (progress.changed, Exit::Success);
        }
        if !goes_on {
            break (progress.changed, Exit::Interrupted);
        }
    };
    bar.finish_and_clear();
    let finished = exit == Exit::Success;
    if target.json {
        output::json(
            &json!({"action": number, "verb": verb.as_str(), "changed": changed, "finished": finished}),
        )?;
    } else if finished {
        output::line(&format!("{}: {changed} events, action {number}", verb.as_str()))?;
    } else {
        output::line(&format!(
            "interrupted after {changed} events; go on with: outbox {} --action {number}",
            verb.as_str()
        ))?;
    }
    Ok(exit)
}

fn no_such_action(number: i64) -> CliError {
    CliError::NotFound(format!("there is no redrive or discard of number {number}"))
}

fn bar(events: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{bar:40} {human_pos} of {human_len} events, {per_sec}, {eta} left";
    match (events, ProgressStyle::with_template(template)) {
        (Some(events), Ok(style)) => ProgressBar::new(events).with_style(style),
        _ => ProgressBar::new_spinner(),
    }
}

fn show(target: &Target, verb: Verb, preview: &Preview) -> Result<(), CliError> {
    if !target.json {
        return output::line(&text(verb, preview));
    }
    let types = preview
        .types
        .iter()
        .map(|(name, events, samples)| json!({"event_type": name, "events": events, "samples": samples}));
    output::json(&json!({
        "verb": verb.as_str(), "dry_run": true, "events": preview.events, "types": types.collect::<Vec<_>>(),
    }))
}

fn text(verb: Verb, preview: &Preview) -> String {
    if preview.events == 0 {
        return format!("nothing to {}", verb.as_str());
    }
    let rows = preview.types.iter().map(|(name, events, samples)| {
        let ids: Vec<String> = samples.iter().map(ToString::to_string).collect();
        vec![output::short(name, 60), events.to_string(), ids.join(" ")]
    });
    let table = output::table(&["type", "events", "such as"], rows);
    format!("would {} {} events\n{table}", verb.as_str(), preview.events)
}

/// Whether there is any condition beside ids.
fn picks(args: &Change) -> bool {
    let pick = &args.pick;
    pick.event_type.is_some()
        || pick.tenant.is_some()
        || pick.key.is_some()
        || pick.error.is_some()
        || args.older_than.is_some()
        || args.newer_than.is_some()
}

fn filter(args: &Change) -> Result<FailedFilter, CliError> {
    let pick = &args.pick;
    if args.ids.is_empty() && !picks(args) && !args.all {
        return Err(CliError::Usage(
            "which events? give ids, a condition, or --all".to_owned(),
        ));
    }
    let mut filter = match args.ids.is_empty() {
        true => FailedFilter::all(),
        false => FailedFilter::ids(args.ids.iter().copied()),
    };
    if let Some(name) = &pick.event_type {
        filter = filter.of_type(EventType::new(name.clone())?);
    }
    if let Some(tenant) = &pick.tenant {
        filter = filter.of_tenant(TenantId::new(tenant.clone())?);
    }
    if let Some(key) = &pick.key {
        filter = filter.with_key(OrderingKey::new(key.clone())?);
    }
    if let Some(error) = &pick.error {
        filter = filter.with_error(error.clone());
    }
    if let Some(age) = args.older_than {
        filter = filter.failed_before(age);
    }
    if let Some(age) = args.newer_than {
        filter = filter.failed_within(age);
    }
    Ok(filter)
}
