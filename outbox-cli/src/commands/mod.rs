//! One file per command.

mod change;
mod completions;
mod doctor;
mod list;
mod migrate;
mod pause;
mod prune;
mod reopen;
mod roles;
mod show;
mod status;

use crate::cli::{Cli, Command};
use crate::exit::{CliError, Exit};

pub(crate) async fn run(cli: Cli) -> Result<Exit, CliError> {
    let target = cli.target;
    match cli.command {
        Command::Migrate(args) => migrate::run(&target, &args).await,
        Command::Roles(args) => roles::run(&target, &args).await,
        Command::Status(args) => status::run(&target, &args).await,
        Command::List(args) => list::run(&target, &args).await,
        Command::Show(args) => show::run(&target, &args).await,
        Command::Redrive(args) => change::run(&target, change::Verb::Redrive, &args).await,
        Command::Discard(args) => change::run(&target, change::Verb::Discard, &args).await,
        Command::Reopen(args) => reopen::run(&target, &args).await,
        Command::Pause(args) => pause::pause(&target, &args).await,
        Command::Resume(args) => pause::resume(&target, &args).await,
        Command::Prune(args) => prune::run(&target, &args).await,
        Command::Doctor(args) => doctor::run(&target, &args).await,
        Command::Completions { shell } => completions::run(shell),
    }
}
