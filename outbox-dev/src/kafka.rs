//! A Kafka broker, from whichever way is open, and control over one of our own.
//!
//! | Way | Needs | Settings |
//! | --- | --- | --- |
//! | address | a running cluster | `OUTBOX_KAFKA_BOOTSTRAP` |
//! | docker | a Docker engine that answers | `OUTBOX_KAFKA_IMAGE`, default `apache/kafka:4.1.0` |
//! | script | Java 17 and Maven | those of `scripts/kafka-broker.sh` |
//!
//! `OUTBOX_DEV_KAFKA=address|docker|script` forces one.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use testcontainers::core::{IntoContainerPort, WaitFor};
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};
use uuid::Uuid;

use crate::error::{DevError, other, with_causes};
use crate::postgres::free_port;

const DEFAULT_IMAGE: &str = "apache/kafka:4.1.0";
/// Generous: the jars or the image may have to be fetched first.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// A Kafka cluster of one node. One of our own ends with this handle, or with the process if that is killed.
#[derive(Debug)]
pub struct DevKafka {
    bootstrap: String,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Address,
    Container(Box<ContainerAsync<GenericImage>>),
    Script(Script),
}

/// How a broker goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KafkaStop {
    /// It hands over and shuts down in order.
    Orderly,
    /// SIGKILL.
    Kill,
}

/// What a broker of our own is started with.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct KafkaOptions {
    /// The port that clients are told, when a proxy stands in between.
    pub advertised_port: Option<u16>,
    /// Lines for the broker's properties; they win over ours.
    pub properties: String,
}

impl KafkaOptions {
    /// Sets [`advertised_port`](Self::advertised_port).
    #[must_use]
    pub fn with_advertised_port(mut self, port: u16) -> Self {
        self.advertised_port = Some(port);
        self
    }

    /// Adds lines to [`properties`](Self::properties).
    #[must_use]
    pub fn with_properties(mut self, lines: &str) -> Self {
        self.properties.push_str(lines);
        self.properties.push('\n');
        self
    }
}

impl DevKafka {
    /// A cluster by any way.
    ///
    /// # Errors
    /// [`DevError`] tells what was tried, and what would do.
    ///
    /// # Cancel safety
    /// What was started ends with the process.
    pub async fn start() -> Result<Self, DevError> {
        match (forced().as_deref(), env::var("OUTBOX_KAFKA_BOOTSTRAP")) {
            (None | Some("address"), Ok(bootstrap)) if !bootstrap.is_empty() => Ok(Self {
                bootstrap,
                backing: Backing::Address,
            }),
            (Some("address"), _) => {
                let why = "OUTBOX_DEV_KAFKA is address, and OUTBOX_KAFKA_BOOTSTRAP names none";
                Err(DevError::control("reach a Kafka cluster", why))
            }
            _ => Self::start_own().await,
        }
    }

    /// A cluster of our own, which may be stopped and killed.
    ///
    /// # Errors
    /// [`DevError`] tells what was tried, and what would do.
    ///
    /// # Cancel safety
    /// What was started ends with the process.
    pub async fn start_own() -> Result<Self, DevError> {
        let docker = match forced().as_deref() {
            None | Some("address") => match start_container().await {
                Ok(broker) => return Ok(broker),
                Err(error) => with_causes(&error),
            },
            Some("docker") => return start_container().await,
            Some(_) => "not tried".to_owned(),
        };
        let started = Self::start_with(KafkaOptions::default()).await;
        started.map_err(|error| {
            let text = format!(
                "any of three ways would do:\n  address: set OUTBOX_KAFKA_BOOTSTRAP to a running cluster\n  docker: \
                 start a Docker engine (image: OUTBOX_KAFKA_IMAGE)\n      failed: {docker}\n  script: install Java 17 \
                 and Maven\n      failed: {}",
                with_causes(&error)
            );
            DevError::control("start a Kafka broker", text)
        })
    }

    /// A broker of our own with settings of the test's, always by the script.
    ///
    /// # Errors
    /// [`DevError`] when the script fails, with its words.
    ///
    /// # Cancel safety
    /// What was started ends with the process.
    pub async fn start_with(options: KafkaOptions) -> Result<Self, DevError> {
        let script =
            Script::new(options).map_err(|error| DevError::control("start a Kafka broker", error))?;
        let bootstrap = script.run("start").await?;
        Ok(Self {
            bootstrap,
            backing: Backing::Script(script),
        })
    }

    /// The address for clients, `host:port`. Stays the same over restarts.
    #[must_use]
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Takes the broker down.
    ///
    /// # Errors
    /// [`DevError::NotOurs`] for a cluster given by address; otherwise what came of it.
    ///
    /// # Cancel safety
    /// It may be down or not.
    pub async fn stop(&self, how: KafkaStop) -> Result<(), DevError> {
        match (&self.backing, how) {
            (Backing::Address, _) => Err(DevError::NotOurs),
            (Backing::Script(script), KafkaStop::Orderly) => script.run("stop").await.map(drop),
            (Backing::Script(script), KafkaStop::Kill) => script.run("kill").await.map(drop),
            (Backing::Container(container), how) => {
                let seconds = if how == KafkaStop::Kill { 0 } else { 30 };
                let stopped = container.stop_with_timeout(Some(seconds)).await;
                stopped.map_err(|error| DevError::control("stop the container", error))
            }
        }
    }

    /// Brings the broker up again, with its data and at its address.
    ///
    /// # Errors
    /// [`DevError::NotOurs`] for a cluster given by address; otherwise what came of it.
    ///
    /// # Cancel safety
    /// It may be up or not.
    pub async fn resume(&self) -> Result<(), DevError> {
        match &self.backing {
            Backing::Address => Err(DevError::NotOurs),
            Backing::Script(script) => script.run("start").await.map(drop),
            Backing::Container(container) => {
                let started = container.start().await;
                started.map_err(|error| DevError::control("start the container again", error))
            }
        }
    }
}

fn forced() -> Option<String> {
    env::var("OUTBOX_DEV_KAFKA").ok().filter(|way| !way.is_empty())
}

/// A broker by `scripts/kafka-broker.sh`; dropping it removes it.
#[derive(Debug)]
struct Script {
    dir: PathBuf,
    advertised_port: Option<u16>,
}

impl Script {
    fn new(options: KafkaOptions) -> io::Result<Self> {
        let dir = env::temp_dir().join(format!("outbox-kafka-{}", Uuid::new_v4().simple()));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("extra.properties"), options.properties)?;
        Ok(Self {
            dir,
            advertised_port: options.advertised_port,
        })
    }

    /// Runs a command of the script and returns what it prints.
    async fn run(&self, command: &'static str) -> Result<String, DevError> {
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

async fn start_container() -> Result<DevKafka, DevError> {
    let failed = |error| DevError::control("start a Kafka container", error);
    let image = env::var("OUTBOX_KAFKA_IMAGE")
        .ok()
        .filter(|image| !image.is_empty());
    let image = image.unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
    let (name, tag) = match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image.as_str(), "latest"),
    };
    // Fixed, because clients are told it, and one that Docker picks is another one after a restart.
    let port = free_port().map_err(|error| DevError::control("find a free port", error))?;
    let mut request = GenericImage::new(name, tag)
        .with_wait_for(WaitFor::message_on_stdout("Kafka Server started"))
        .with_mapped_port(port, 9092.tcp())
        .with_startup_timeout(START_TIMEOUT);
    for (name, value) in container_env(port) {
        request = request.with_env_var(name, value);
    }
    let container = tokio::time::timeout(START_TIMEOUT, request.start()).await;
    let container = container.map_err(|elapsed| DevError::control("start a Kafka container", elapsed))?;
    Ok(DevKafka {
        bootstrap: format!("127.0.0.1:{port}"),
        backing: Backing::Container(Box::new(container.map_err(failed)?)),
    })
}

fn container_env(port: u16) -> [(&'static str, String); 12] {
    let one = || "1".to_owned();
    [
        ("KAFKA_NODE_ID", one()),
        ("KAFKA_PROCESS_ROLES", "broker,controller".to_owned()),
        (
            "KAFKA_LISTENERS",
            "PLAINTEXT://:9092,CONTROLLER://localhost:9093".to_owned(),
        ),
        (
            "KAFKA_ADVERTISED_LISTENERS",
            format!("PLAINTEXT://127.0.0.1:{port}"),
        ),
        ("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER".to_owned()),
        (
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned(),
        ),
        ("KAFKA_CONTROLLER_QUORUM_VOTERS", "1@localhost:9093".to_owned()),
        ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", one()),
        ("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", one()),
        ("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", one()),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0".to_owned()),
        ("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false".to_owned()),
    ]
}
