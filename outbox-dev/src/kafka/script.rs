//! A broker by the script.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use uuid::Uuid;

use super::KafkaOptions;
use crate::error::{DevError, other};

/// A broker by `scripts/kafka-broker.sh`; dropping it removes it.
#[derive(Debug)]
pub(super) struct Script {
    dir: PathBuf,
    advertised_port: Option<u16>,
}

impl Script {
    pub(super) fn new(options: KafkaOptions) -> io::Result<Self> {
        let dir = env::temp_dir().join(format!("outbox-kafka-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("extra.properties"), options.properties)?;
        Ok(Self {
            dir,
            advertised_port: options.advertised_port,
        })
    }

    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Runs a command of the script and returns what it prints.
    pub(super) async fn run(&self, command: &'static str) -> Result<String, DevError> {
        let mut process = self.process(command);
        let output = tokio::task::spawn_blocking(move || process.output()).await;
        let failed = |error| DevError::control("run scripts/kafka-broker.sh", error);
        let output = output.map_err(io::Error::other).map_err(failed)?;
        output.and_then(|output| answer(&output)).map_err(failed)
    }

    fn process(&self, command: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/kafka-broker.sh");
        let mut process = Command::new(script);
        process
            .arg(command)
            .arg(&self.dir)
            .env("OUTBOX_KAFKA_OWNER", std::process::id().to_string())
            .env("OUTBOX_KAFKA_PROPERTIES", self.dir.join("extra.properties"))
            .stdin(std::process::Stdio::null());
        if let Some(port) = self.advertised_port {
            process.env("OUTBOX_KAFKA_ADVERTISED", OsString::from(port.to_string()));
        }
        process
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if let Err(error) = self.process("remove").output() {
            tracing::warn!(%error, "a Kafka broker is left until the process ends");
        }
    }
}

fn answer(output: &Output) -> io::Result<String> {
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        Err(other(String::from_utf8_lossy(&output.stderr)))
    }
}
