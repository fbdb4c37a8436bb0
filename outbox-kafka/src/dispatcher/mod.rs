//! Delivers events to topics.

mod careful;
mod instance;
mod job;
mod options;
mod pipeline;
mod sender;
mod topics;
mod transactional;
mod verdict;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{ConfigError, Delivered, Delivery, Dispatcher, Failure, FailureKind, Limits, RunResult};
use rdkafka::admin::AdminClient;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub use options::DispatcherOptions;
pub use transactional::TransactionalDispatcher;

use self::instance::{Instance, InstanceConfig};
use self::job::{Request, called_off, deadline, outage};
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;
use crate::{OutgoingRecord, RecordMapping};

/// How long it may take from a run's deadline until the relay has the answer.
const ANSWER_TIME: Duration = Duration::from_secs(1);
/// How much longer than a delivery a lease has to be.
const LEASE_MARGIN: Duration = Duration::from_secs(2);
/// How many runs may wait for the sender to take them up.
const REQUESTS_MAX: usize = 1024;

/// Delivers events to Kafka: pipelined, and yet in order per key whatever fails.
///
/// An event counts as delivered once the broker has acknowledged its record from all in-sync replicas. A record that
/// the broker refuses for its own sake is rejected at once, with the reason. While the cluster cannot be reached
/// nothing is charged to any event. A topic that is not there, or not ours to write, costs an attempt of the events
/// that are meant for it, and stops no others.
///
/// Order: the events of one ordering key, as [`dispatch_run`](Dispatcher::dispatch_run) gets them, appear on their
/// topic in that order, first occurrences counted. Duplicates are possible; consumers tell them by the event's id.
/// The order ends where partitions are added to a topic, because keys then move.
///
/// The client connects in the background, so a cluster that is down does not keep the relay from starting.
pub struct KafkaDispatcher {
    mapping: RecordMapping,
    config: InstanceConfig,
    admin: Arc<AdminClient<ClientLog>>,
    /// The way to the sender's task, which starts with the first delivery.
    requests: Mutex<Option<mpsc::Sender<Request>>>,
}

impl KafkaDispatcher {
    /// A dispatcher for the cluster of `settings`.
    ///
    /// # Errors
    /// [`ConfigError`] when librdkafka does not take the settings, or one of them is not the user's to set.
    pub fn new(
        settings: &KafkaSettings,
        mapping: RecordMapping,
        options: DispatcherOptions,
    ) -> Result<Self, ConfigError> {
        settings.check(&InstanceConfig::RESERVED)?;
        let config = options.instance_config(settings)?;
        // Made for its refusals alone: what is wrong with the settings should be said before anything is claimed.
        let (reports, _) = mpsc::unbounded_channel();
        let trial = Instance::new(
            settings,
            &config.pipelined(config.batch_bytes_max),
            "trial",
            reports,
        )?;
        trial.discard();
        Ok(Self {
            mapping,
            config,
            admin: Arc::new(topics::admin(settings)?),
            requests: Mutex::new(None),
        })
    }

    /// The way to the sender; starts it if it does not run, which after the first time means that it panicked.
    fn sender(&self) -> mpsc::Sender<Request> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        match &*requests {
            Some(requests) if !requests.is_closed() => requests.clone(),
            _ => {
                let (to_sender, taken) = mpsc::channel(REQUESTS_MAX);
                tokio::spawn(sender::run(self.config.clone(), Arc::clone(&self.admin), taken));
                *requests = Some(to_sender.clone());
                to_sender
            }
        }
    }
}

/// The records of a run, up to the first event that cannot be one.
fn records(mapping: &RecordMapping, run: &[Delivery]) -> (Vec<OutgoingRecord>, Option<Failure>) {
    let mut records = Vec::with_capacity(run.len());
    for delivery in run {
        match mapping.record(&delivery.envelope) {
            Ok(record) => records.push(record),
            Err(why) => return (records, Some(Failure::new(FailureKind::Reject, why))),
        }
    }
    (records, None)
}

/// Hands a run to the task that sends, and waits for its answer.
async fn deliver(
    mapping: &RecordMapping,
    run: &[Delivery],
    deadline: Instant,
    sender: impl FnOnce() -> mpsc::Sender<Request> + Send,
) -> RunResult {
    let Some(first) = run.first() else {
        return Vec::new();
    };
    let (records, failure) = records(mapping, run);
    let (reply, answer) = oneshot::channel();
    let request = Request {
        records,
        failure,
        deadline,
        cancelled: first.cancelled.clone(),
        reply,
    };
    let sender = sender();
    let sent = tokio::select! {
        () = first.cancelled.cancelled() => return vec![Err(called_off())],
        sent = sender.send(request) => sent,
    };
    match sent {
        Ok(()) => match answer.await {
            Ok(answer) => answer.into_result(),
            Err(_) => vec![Err(outage("the task that sends to Kafka has ended"))],
        },
        Err(_) => vec![Err(outage("the task that sends to Kafka has ended"))],
    }
}

/// A delivery has to end before the relay gives it up, and well before its lease does.
fn check_limits(timeout: Duration, limits: &Limits) -> Result<(), ConfigError> {
    let refused = |what: &str, than: Duration, most: Duration| {
        let right = format!("with {what} of {than:?} it takes at most {most:?}");
        Err(ConfigError::new(
            "delivery_timeout",
            format!("{timeout:?}"),
            right,
        ))
    };
    if timeout + LEASE_MARGIN > limits.lease {
        return refused("a lease", limits.lease, limits.lease.saturating_sub(LEASE_MARGIN));
    }
    if timeout + ANSWER_TIME > limits.handler_timeout {
        let most = limits.handler_timeout.saturating_sub(ANSWER_TIME);
        return refused("a handler timeout", limits.handler_timeout, most);
    }
    Ok(())
}

impl std::fmt::Debug for KafkaDispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaDispatcher")
            .field("mapping", &self.mapping)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Dispatcher for KafkaDispatcher {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let mut results = self.dispatch_run(std::slice::from_ref(delivery)).await;
        results.pop().unwrap_or_else(|| Err(outage("no answer came")))
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let until = deadline(Instant::now() + self.config.delivery_timeout, run);
        deliver(&self.mapping, run, until, || self.sender()).await
    }

    fn pipelines(&self) -> bool {
        true
    }

    fn prepare(&self, limits: &Limits) -> Result<(), ConfigError> {
        check_limits(self.config.delivery_timeout, limits)
    }
}
