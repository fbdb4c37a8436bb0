//! Delivers events to topics by Kafka's transactions.

mod queue;
mod session;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use outbox_core::{ConfigError, Delivered, Delivery, Dispatcher, Failure, Limits, RunResult};
use rdkafka::admin::AdminClient;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::session::Session;
use super::DispatcherOptions;
use super::instance::InstanceConfig;
use super::job::{Request, deadline, outage};
use super::topics;
use crate::RecordMapping;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

/// Delivers events to Kafka in small transactions, for those who want an old relay fenced off.
///
/// The runs that wait are written together, in one transaction. If any record fails, all of them are taken back, and
/// those that the broker objected to are tried alone, each in a transaction of its own. What is charged to whom is as with
/// [`KafkaDispatcher`](super::KafkaDispatcher). If the cluster objects to a topic and there are several, each topic goes
/// alone; the events of the one that is in trouble are charged, the others are written again, some seconds later.
///
/// What it adds: once a producer with the same transactional id has started, one that was there before it can write
/// nothing more. A relay that was cut off and replaced cannot add to the topic behind the back of its successor.
///
/// What it costs:
/// - Consumers have to read with `isolation.level=read_committed`, or they see what was taken back, and order per key
///   does not hold for them. It is librdkafka's default, and not that of the Java client.
/// - An open transaction holds back every such reader of its partitions.
/// - One transaction is under way at a time, with two more round trips each: fewer events per second, and later.
/// - Each relay needs a transactional id of its own, which stays the same over restarts. Two live relays of one id fence
///   each other in turns, and deliver little.
///
/// Delivery stays *at least once*: a relay may die after the commit and before the settlement.
pub struct TransactionalDispatcher {
    mapping: RecordMapping,
    transactional_id: String,
    config: InstanceConfig,
    admin: Arc<AdminClient<ClientLog>>,
    /// The way to the worker's task, which starts with the first delivery.
    requests: Mutex<Option<mpsc::Sender<Request>>>,
}

impl TransactionalDispatcher {
    /// A dispatcher for the cluster of `settings`, whose producer has that transactional id.
    ///
    /// # Errors
    /// [`ConfigError`] when the id is empty, librdkafka does not take the settings, or one of them is not the user's to
    /// set.
    pub fn new(
        settings: &KafkaSettings,
        mapping: RecordMapping,
        options: DispatcherOptions,
        transactional_id: impl Into<String>,
    ) -> Result<Self, ConfigError> {
        settings.check(&InstanceConfig::RESERVED)?;
        let config = options.instance_config(settings)?;
        let transactional_id = transactional_id.into();
        if transactional_id.trim().is_empty() {
            let right = "it takes a name that is this relay's alone, and stays over restarts";
            return Err(ConfigError::new(
                "transactional_id",
                format!("{transactional_id:?}"),
                right,
            ));
        }
        // Made for its refusals alone, like that of the pipeline.
        Session::make(&config, &transactional_id)?.discard();
        Ok(Self {
            mapping,
            transactional_id,
            config,
            admin: Arc::new(topics::admin(settings)?),
            requests: Mutex::new(None),
        })
    }

    /// The way to the worker; starts it if it does not run, which after the first time means that it panicked.
    fn worker(&self) -> mpsc::Sender<Request> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        match &*requests {
            Some(requests) if !requests.is_closed() => requests.clone(),
            _ => {
                let (to_worker, taken) = mpsc::channel(super::REQUESTS_MAX);
                let (config, id) = (self.config.clone(), self.transactional_id.clone());
                tokio::spawn(worker::run(config, id, Arc::clone(&self.admin), taken));
                *requests = Some(to_worker.clone());
                to_worker
            }
        }
    }
}

impl std::fmt::Debug for TransactionalDispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionalDispatcher")
            .field("mapping", &self.mapping)
            .field("transactional_id", &self.transactional_id)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Dispatcher for TransactionalDispatcher {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let mut results = self.dispatch_run(std::slice::from_ref(delivery)).await;
        results.pop().unwrap_or_else(|| Err(outage("no answer came")))
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let until = deadline(Instant::now() + self.config.delivery_timeout, run);
        super::deliver(&self.mapping, run, until, || self.worker()).await
    }

    fn pipelines(&self) -> bool {
        true
    }

    fn prepare(&self, limits: &Limits) -> Result<(), ConfigError> {
        super::check_limits(self.config.delivery_timeout, limits)
    }
}
