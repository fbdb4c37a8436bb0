//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use outbox::EventId;

/// Operate an outbox on Postgres.
///
/// The database comes from JOBS_DB_URL, else DATABASE_URL (migrate and roles: the other way round), or from a file.
///
/// Exit codes: 0 done, 1 doctor found something or no output, 2 wrong command line or setting, 3 database not reached,
/// 4 database refuses (right, schema version), 5 no such event or action, 6 not confirmed, 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "outbox", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which outbox, and how to speak of it.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Schema of the outbox.
    #[arg(long, global = true, default_value = "outbox", env = "OUTBOX_SCHEMA")]
    pub(crate) schema: String,
    /// Table of the outbox.
    #[arg(long, global = true, default_value = "outbox", env = "OUTBOX_TABLE")]
    pub(crate) table: String,
    /// Environment variable that holds the database's URL.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) url_env: Option<String>,
    /// File that holds the database's URL and nothing else.
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "url_env")]
    pub(crate) url_file: Option<PathBuf>,
    /// JSON instead of tables.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Who is recorded as the one who wanted a change. Default: the user of the system.
    #[arg(long, global = true, env = "OUTBOX_ACTOR", value_name = "NAME")]
    pub(crate) actor: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring the schema up to date.
    Migrate(Migrate),
    /// Grant roles their part, isolate tenants.
    Roles(Roles),
    /// What stands where.
    Status(Status),
    /// Events, page by page.
    List(List),
    /// Everything about one event.
    Show(Show),
    /// Make failed events pending again.
    Redrive(Change),
    /// Give failed events up.
    Discard(Change),
    /// Turn completed events into failed ones, to be redriven: for types whose handler was missing.
    Reopen(Reopen),
    /// Stop claiming an event type or an ordering key.
    Pause(Block),
    /// Let a paused type, or a paused or stopped key, run again.
    Resume(Block),
    /// Delete settled events past their retention.
    Prune(Prune),
    /// Find out what is wrong, and what to do about it.
    Doctor(Doctor),
    /// Completions for a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// Print all migrations as SQL instead of running them.
    #[arg(long)]
    pub(crate) sql: bool,
    /// Isolate tenants by row-level security.
    #[arg(long)]
    pub(crate) tenants: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Roles {
    /// Role that may publish.
    #[arg(long, value_name = "ROLE")]
    pub(crate) publisher: Vec<String>,
    /// Role of transactional handlers.
    #[arg(long, value_name = "ROLE")]
    pub(crate) handler: Vec<String>,
    /// Role that may claim, settle and operate.
    #[arg(long, value_name = "ROLE")]
    pub(crate) relay: Vec<String>,
    /// Role that may see what became of events.
    #[arg(long, value_name = "ROLE")]
    pub(crate) reader: Vec<String>,
    /// Role to take everything from.
    #[arg(long, value_name = "ROLE")]
    pub(crate) revoke: Vec<String>,
    /// Isolate tenants by row-level security, or stop to.
    #[arg(long, value_name = "ON|OFF")]
    pub(crate) tenants: Option<Switch>,
    /// Print the statements instead of running them.
    #[arg(long)]
    pub(crate) sql: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Show it again and again.
    #[arg(long)]
    pub(crate) watch: bool,
    /// How often.
    #[arg(long, default_value = "2s", value_parser = interval, requires = "watch", value_name = "TIME")]
    pub(crate) every: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusName {
    Pending,
    Completed,
    Failed,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Of this status.
    #[arg(long, default_value = "failed")]
    pub(crate) status: StatusName,
    #[command(flatten)]
    pub(crate) pick: Pick,
    /// At most so many.
    #[arg(long, default_value_t = 50)]
    pub(crate) limit: u32,
    /// After the event of this number: the last one of the page before.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) after: Option<i64>,
}

/// Conditions that add up.
#[derive(Debug, Args)]
pub(crate) struct Pick {
    /// Of this event type.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: Option<String>,
    /// Of this tenant.
    #[arg(long, value_name = "TENANT")]
    pub(crate) tenant: Option<String>,
    /// With this ordering key.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Whose error contains this text.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) error: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The event's id.
    pub(crate) id: EventId,
    /// Show the payload too, which may be personal data.
    #[arg(long)]
    pub(crate) payload: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Events by id. Only so can a discarded one be redriven.
    pub(crate) ids: Vec<EventId>,
    #[command(flatten)]
    pub(crate) pick: Pick,
    /// That failed at least so long ago, such as 2h or 3d.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) older_than: Option<Duration>,
    /// That failed no longer ago than this.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) newer_than: Option<Duration>,
    /// All failed events.
    #[arg(long)]
    pub(crate) all: bool,
    /// Go on with the action of this number, which was interrupted: with the conditions that it was begun with.
    #[arg(long, value_name = "NUMBER", conflicts_with = "dry_run")]
    pub(crate) action: Option<i64>,
    /// Say what would change, with samples, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Why, for the record.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) reason: String,
    /// Events changed in one step; claims wait while one runs.
    #[arg(long, default_value_t = 500, value_name = "EVENTS")]
    pub(crate) step: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Reopen {
    /// Of this event type.
    #[arg(long = "type", value_name = "TYPE")]
    pub(crate) event_type: String,
    /// Completed no longer ago than this, such as 2h.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) newer_than: Duration,
    /// Say how many, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Why, for the record.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Block {
    /// The event type, for all tenants.
    #[arg(
        long = "type",
        value_name = "TYPE",
        conflicts_with = "key",
        required_unless_present = "key"
    )]
    pub(crate) event_type: Option<String>,
    /// The ordering key.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Whose key it is.
    #[arg(long, default_value = "", value_name = "TENANT", requires = "key")]
    pub(crate) tenant: String,
    /// Why, for the record.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Prune {
    /// Settled at least so long ago, such as 7d.
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub(crate) older_than: Duration,
    /// Failed events too that nobody discarded.
    #[arg(long)]
    pub(crate) failed_too: bool,
    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Why, for the record.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// An event that could run may have been due for this long.
    #[arg(long, default_value = "60s", value_parser = duration, value_name = "TIME")]
    pub(crate) max_lag: Duration,
    /// A transaction may be open this long.
    #[arg(long, default_value = "10m", value_parser = duration, value_name = "TIME")]
    pub(crate) max_transaction: Duration,
    /// Event types that the application handles, to find those that nobody does.
    #[arg(long, value_delimiter = ',', value_name = "TYPE")]
    pub(crate) handled: Vec<String>,
}

/// Longer ones are mistakes, and no instant that the database knows is so long ago.
const LONGEST: Duration = Duration::from_secs(1000 * 366 * 24 * 3600);

/// `90s`, `2h 30m`, `7d`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time such as 90s, 2h or 7d");
    let span: jiff::Span = text.parse().map_err(|_| wrong())?;
    let exact = span
        .to_duration(jiff::SpanRelativeTo::days_are_24_hours())
        .map_err(|_| wrong())?;
    let time = Duration::try_from(exact).map_err(|_| wrong())?;
    match time <= LONGEST {
        true => Ok(time),
        false => Err(format!("{text:?} is more than 1000 years")),
    }
}

/// A time between two looks, which are not for nothing.
fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    match time >= Duration::from_millis(100) {
        true => Ok(time),
        false => Err(format!("{text:?} is too often; it takes 100ms or more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1d 2h"), Ok(Duration::from_secs(26 * 3600)));
        assert!(duration("-5s").is_err());
        assert!(duration("soon").is_err());
        assert!(duration("366000d").is_ok());
        assert!(duration("366001d").is_err());
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
        assert!(interval("0s").is_err());
    }
}
