//! Completions, from the same description as the command line.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::{CliError, Exit};

pub(super) fn run(shell: Shell) -> Result<Exit, CliError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "outbox", &mut text);
    crate::output::line(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Success)
}
