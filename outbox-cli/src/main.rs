//! The command `outbox`: what an operator does with an outbox on Postgres.

mod cli;
mod commands;
mod connection;
mod exit;
mod output;

use clap::Parser;

use cli::Cli;

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    match commands::run(cli).await {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("outbox: {}", exit::chain(&error));
            error.code().into()
        }
    }
}
