//! A process of a chaos run: `outbox-chaos relay` and `outbox-chaos publisher` take their configuration as one line of
//! JSON on stdin, and end with it, or in good order at SIGTERM.
//!
//! `outbox-chaos run` starts them, does faults for OUTBOX_CHAOS_SECONDS (300) by OUTBOX_CHAOS_SEED (random), and exits
//! with 0 only if everything held. The report goes to stdout and to target/chaos/, the history of a run that failed too.

use std::io::{BufRead, Read, stdin};
use std::process::ExitCode;
use std::time::Duration;

use outbox::{BoxError, variable};
use outbox_chaos::{RunConfig, publish, relay, run};
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let done = match kind.as_str() {
        "relay" => run_relay().await,
        "publisher" => run_publisher().await,
        "run" => run_all().await,
        _ => Err("usage: outbox-chaos run|relay|publisher".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outbox-chaos {kind}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the configuration. From then on the process ends when whoever started it is gone.
fn config<T: DeserializeOwned>() -> Result<T, BoxError> {
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    // A thread of its own: the runtime would wait for a read of its own at the end.
    std::thread::spawn(|| {
        let _ = stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    Ok(serde_json::from_str(&line)?)
}

async fn run_relay() -> Result<(), BoxError> {
    let config = config()?;
    let mut terminate = signal(SignalKind::terminate())?;
    relay(&config, async move {
        terminate.recv().await;
    })
    .await
}

async fn run_publisher() -> Result<(), BoxError> {
    let config = config()?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        done = publish(&config) => done,
        _ = terminate.recv() => Ok(()),
    }
}

/// A number from the environment, or another.
fn setting(name: &str, otherwise: u64) -> Result<u64, BoxError> {
    match variable::read(name)? {
        Some(text) => text
            .parse()
            .map_err(|_| format!("{name} is {text:?}; it takes a whole number").into()),
        None => Ok(otherwise),
    }
}

async fn run_all() -> Result<(), BoxError> {
    let config = RunConfig {
        seed: setting("OUTBOX_CHAOS_SEED", u64::from(fastrand::u32(..)))?,
        length: Duration::from_secs(setting("OUTBOX_CHAOS_SECONDS", 300)?),
    };
    println!("seed {}", config.seed);
    let outcome = run(config).await?;
    println!("{}", outcome.report);
    std::fs::create_dir_all("target/chaos")?;
    std::fs::write(format!("target/chaos/{}.txt", config.seed), &outcome.report)?;
    if outcome.verdict.violations.is_empty() {
        return Ok(std::fs::remove_dir_all(outcome.folder)?);
    }
    Err(format!(
        "something did not hold; the history is in {}",
        outcome.folder.display()
    )
    .into())
}
