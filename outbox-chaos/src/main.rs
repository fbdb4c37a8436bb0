//! A process of a chaos run: `outbox-chaos relay` and `outbox-chaos publisher` take their configuration as one line of
//! JSON on stdin, and end with it, or in good order at SIGTERM.

use std::io::{BufRead, Read, stdin};
use std::process::ExitCode;

use outbox::BoxError;
use outbox_chaos::{publish, relay};
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let done = match kind.as_str() {
        "relay" => run_relay().await,
        "publisher" => run_publisher().await,
        _ => Err("usage: outbox-chaos relay|publisher".into()),
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
