//! The command `outbox`: what an operator does with an outbox on Postgres.

mod cli;
mod commands;
mod connection;
mod exit;
mod output;

use clap::{CommandFactory, Parser};
use outbox::variable;

use cli::Cli;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match run().await {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("outbox: {}", exit::chain(&error));
            error.code().into()
        }
    }
}

async fn run() -> Result<exit::Exit, exit::CliError> {
    // clap would refuse such a value too, but without the variable's name.
    for argument in Cli::command().get_arguments() {
        if let Some(name) = argument.get_env().and_then(|name| name.to_str()) {
            variable::read(name)?;
        }
    }
    commands::run(Cli::parse()).await
}
