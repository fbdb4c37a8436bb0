//! Runs a command with a Postgres beside it: `cargo run -p outbox-dev -- psql`, or without a command
//! until its input ends. The first line of output is the
//! server's URL; the command has it as `DATABASE_URL`.

use std::{
    error::Error,
    io::Write,
    process::{ExitCode, Stdio},
};

use outbox_dev::DevPostgres;
use tokio::process::Command;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let server = DevPostgres::start().await?;
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", server.url())?;
    stdout.flush()?;

    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        let input =
            tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        tokio::select! {
            ended = input => {
                ended??;
                return Ok(ExitCode::SUCCESS);
            }
            // Heeded even where whoever started this program ignores it, as a shell does for its background jobs.
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                // Not by return: that would wait for the input to end. The supervisor cleans up.
                std::process::exit(130);
            }
        }
    };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("DATABASE_URL", server.url())
        .stdin(Stdio::inherit());
    let status = command.status().await?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
