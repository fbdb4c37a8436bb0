//! A broker in a container.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use testcontainers::core::WaitFor;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};
use uuid::Uuid;

use super::KafkaStop;
use crate::container::{REMOVE_AT_END, publish, split_image};
use crate::error::DevError;
use crate::postgres::free_port;
use crate::supervisor::Supervisor;
use crate::way::{Network, Settings, variable};

const DEFAULT_IMAGE: &str = "apache/kafka:4.1.0";
/// Generous: the image may have to be pulled first.
const START_TIMEOUT: Duration = Duration::from_secs(300);

/// A running container; it goes with this handle, or with the process.
#[derive(Debug)]
pub(super) struct Container {
    container: ContainerAsync<GenericImage>,
    // Never read: its end is what removes the container. In a mutex, because its pipe is not shared otherwise.
    _supervisor: Mutex<Supervisor>,
    port: u16,
}

impl Container {
    pub(super) async fn start() -> Result<Self, DevError> {
        let failed = |error| DevError::control("start a Kafka container", error);
        let settings = Settings::from_env()?;
        let image = variable("OUTBOX_KAFKA_IMAGE")?.unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
        let (name, tag) = split_image(&image);
        // Fixed, because clients are told it, and one that Docker picks is another one after a restart.
        let port = free_port().map_err(|error| DevError::control("find a free port", error))?;
        let container_name = format!("outbox-dev-kafka-{}", Uuid::new_v4().simple());
        let mut request = GenericImage::new(name, tag)
            .with_wait_for(WaitFor::message_on_stdout("Kafka Server started"))
            .with_container_name(&container_name)
            .with_startup_timeout(START_TIMEOUT);
        request = match settings.network {
            Network::Bridge => request.with_host_config_modifier(move |config| publish(config, 9092, port)),
            Network::Host => request.with_network("host"),
        };
        for (name, value) in environment(settings.network, port) {
            request = request.with_env_var(name, value);
        }
        let mut supervisor =
            Supervisor::spawn(REMOVE_AT_END, &[Path::new(&container_name)], None).map_err(failed)?;
        let started = tokio::time::timeout(START_TIMEOUT, request.start()).await;
        supervisor.tell("up").map_err(failed)?;
        let started = started.map_err(|elapsed| DevError::control("start a Kafka container", elapsed))?;
        Ok(Self {
            container: started.map_err(|error| DevError::control("start a Kafka container", error))?,
            _supervisor: Mutex::new(supervisor),
            port,
        })
    }

    pub(super) fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(super) async fn stop(&self, how: KafkaStop) -> Result<(), DevError> {
        let seconds = if how == KafkaStop::Kill { 0 } else { 30 };
        let stopped = self.container.stop_with_timeout(Some(seconds)).await;
        stopped.map_err(|error| DevError::control("stop the container", error))
    }

    pub(super) async fn freeze(&self) -> Result<(), DevError> {
        let paused = self.container.pause().await;
        paused.map_err(|error| DevError::control("freeze the container", error))
    }

    pub(super) async fn thaw(&self) -> Result<(), DevError> {
        let unpaused = self.container.unpause().await;
        unpaused.map_err(|error| DevError::control("let the container go on", error))
    }

    /// Does not wait until the broker serves: clients try again by themselves.
    pub(super) async fn resume(&self) -> Result<(), DevError> {
        let started = self.container.start().await;
        started.map_err(|error| DevError::control("start the container again", error))
    }
}

/// One node, broker and controller in one. The coordinator of transactions calls the broker by its listener for brokers:
/// the port that clients are told does not exist in the container.
fn environment(network: Network, port: u16) -> [(&'static str, String); 15] {
    let one = || "1".to_owned();
    let (client, controller, internal) = match network {
        Network::Bridge => ("0.0.0.0:9092".to_owned(), 9093, 9094),
        Network::Host => (format!("127.0.0.1:{port}"), port + 5_000, port + 10_000),
    };
    [
        ("KAFKA_NODE_ID", one()),
        ("KAFKA_PROCESS_ROLES", "broker,controller".to_owned()),
        (
            "KAFKA_LISTENERS",
            format!(
                "PLAINTEXT://{client},INTERNAL://localhost:{internal},CONTROLLER://localhost:{controller}"
            ),
        ),
        (
            "KAFKA_ADVERTISED_LISTENERS",
            format!("PLAINTEXT://127.0.0.1:{port},INTERNAL://localhost:{internal}"),
        ),
        ("KAFKA_CONTROLLER_LISTENER_NAMES", "CONTROLLER".to_owned()),
        ("KAFKA_INTER_BROKER_LISTENER_NAME", "INTERNAL".to_owned()),
        (
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
            "CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned(),
        ),
        (
            "KAFKA_CONTROLLER_QUORUM_VOTERS",
            format!("1@localhost:{controller}"),
        ),
        ("KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR", one()),
        ("KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS", "4".to_owned()),
        ("KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS", "4".to_owned()),
        ("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", one()),
        ("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", one()),
        ("KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0".to_owned()),
        ("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false".to_owned()),
    ]
}
