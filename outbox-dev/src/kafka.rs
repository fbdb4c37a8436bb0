//! A Kafka broker, from whichever way is open, and control over one of our own.
//!
//! | Way | Needs | Settings |
//! | --- | --- | --- |
//! | address | a running cluster | `OUTBOX_KAFKA_BOOTSTRAP` |
//! | docker | a Docker engine that answers | `OUTBOX_KAFKA_IMAGE`, default `apache/kafka:4.1.0`; `scripts/kafka-image.sh` builds one |
//! | script | Java 17 and Maven | those of `scripts/kafka-broker.sh` |
//!
//! `OUTBOX_DEV_KAFKA=address|docker|script` forces one.

mod container;
mod script;

use std::path::PathBuf;

use container::Container;
use script::Script;

use crate::error::{DevError, with_causes};
use crate::way::variable;

/// A Kafka cluster of one node. One of our own ends with this handle, or with the process if that is killed.
#[derive(Debug)]
pub struct DevKafka {
    bootstrap: String,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    Address,
    Container(Box<Container>),
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
        match (forced()?.as_deref(), variable("OUTBOX_KAFKA_BOOTSTRAP")?) {
            (None | Some("address"), Some(bootstrap)) => Ok(Self {
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
        let docker = match forced()?.as_deref() {
            None | Some("address") => match Container::start().await {
                Ok(container) => return Ok(Self::in_container(container)),
                Err(error) => with_causes(&error),
            },
            Some("docker") => return Container::start().await.map(Self::in_container),
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

    fn in_container(container: Container) -> Self {
        Self {
            bootstrap: container.bootstrap(),
            backing: Backing::Container(Box::new(container)),
        }
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

    /// Where a broker by the script keeps its topics, with a folder for each partition: to damage them by hand while it
    /// is down. `None` for a broker of another way.
    #[must_use]
    pub fn data_dir(&self) -> Option<PathBuf> {
        match &self.backing {
            Backing::Script(script) => Some(script.data_dir()),
            Backing::Address | Backing::Container(_) => None,
        }
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
            (Backing::Container(container), how) => container.stop(how).await,
        }
    }

    /// Stops the broker's process where it stands (SIGSTOP): its connections stay open, and nothing is answered.
    ///
    /// # Errors
    /// [`DevError::NotOurs`] for a cluster given by address; otherwise what came of it.
    ///
    /// # Cancel safety
    /// It may be frozen or not.
    pub async fn freeze(&self) -> Result<(), DevError> {
        match &self.backing {
            Backing::Address => Err(DevError::NotOurs),
            Backing::Script(script) => script.run("pause").await.map(drop),
            Backing::Container(container) => container.freeze().await,
        }
    }

    /// Lets a frozen broker go on.
    ///
    /// # Errors
    /// [`DevError::NotOurs`] for a cluster given by address; otherwise what came of it.
    ///
    /// # Cancel safety
    /// It may be frozen or not.
    pub async fn thaw(&self) -> Result<(), DevError> {
        match &self.backing {
            Backing::Address => Err(DevError::NotOurs),
            Backing::Script(script) => script.run("resume").await.map(drop),
            Backing::Container(container) => container.thaw().await,
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
            Backing::Container(container) => container.resume().await,
        }
    }
}

fn forced() -> Result<Option<String>, DevError> {
    variable("OUTBOX_DEV_KAFKA")
}
