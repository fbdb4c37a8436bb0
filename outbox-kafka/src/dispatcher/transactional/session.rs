//! A producer with a transactional id.

use std::sync::{Arc, Weak};
use std::time::Duration;

use outbox_core::ConfigError;
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::queue::Part;
use crate::OutgoingRecord;
use crate::dispatcher::instance::{Instance, InstanceConfig, Report, Trouble};
use crate::dispatcher::pipeline::Ticket;

/// How long the client may block for one step. A step that times out is taken up again, never begun anew.
const STEP: Duration = Duration::from_secs(1);
/// How long a step is taken up again before the producer is given up. The coordinator ends what it left open.
const STEPS_MAX: Duration = Duration::from_secs(60);

/// How a transaction ended.
#[derive(Debug)]
pub(super) enum End {
    Committed,
    /// Nothing of it will be seen.
    TakenBack(Objections),
    /// Nobody knows, and the producer is of no use any more.
    Unknown(String, Objections),
}

/// Why a transaction was not committed.
#[derive(Debug, Default)]
pub(super) struct Objections {
    /// The records that failed.
    pub(super) records: Vec<(Part, Code)>,
    /// What was said of the transaction as a whole.
    pub(super) whole: Option<Code>,
}

/// A producer that has its transactional id, and with it the right to write under it.
#[derive(Debug)]
pub(super) struct Session {
    instance: Arc<Instance>,
    reports: mpsc::UnboundedReceiver<Report>,
    /// The most bytes of its batches.
    pub(super) batch_bytes_max: usize,
}

impl Session {
    /// Makes the producer. Connects in the background, and has the id only after [`acquire`](Self::acquire).
    pub(super) fn make(config: &InstanceConfig, transactional_id: &str) -> Result<Self, ConfigError> {
        let (to_us, reports) = mpsc::unbounded_channel();
        let client = config.transactional(transactional_id);
        let instance = Instance::new(&config.settings, &client, "transactional", to_us)?;
        Ok(Self {
            instance: Arc::new(instance),
            reports,
            batch_bytes_max: config.batch_bytes_max,
        })
    }

    /// Takes the id over: whoever had it can commit nothing more.
    pub(super) async fn acquire(&self) -> Result<(), Trouble> {
        self.step(|instance| instance.init_transactions(STEP)).await
    }

    pub(super) async fn begin(&self) -> Result<(), Trouble> {
        self.step(Instance::begin_transaction).await
    }

    pub(super) fn send(
        &self,
        record: &OutgoingRecord,
        partition: i32,
        (job, index): Part,
    ) -> Result<(), Code> {
        let ticket = Ticket {
            generation: 0,
            job,
            index,
            lane: 0,
        };
        self.instance.send(record, partition, ticket)
    }

    /// Commits `sent` records; or takes all back if any fails, or one is here that the client did not take.
    ///
    /// The verdicts on the records are read last: what a coordinator says of a topic ends the transaction at once, but
    /// its records only when their time is up.
    pub(super) async fn end(&mut self, sent: usize, refused: Vec<(Part, Code)>) -> End {
        let mut objections = Objections {
            records: refused,
            whole: None,
        };
        if objections.records.is_empty() {
            match self.step(|instance| instance.commit_transaction(STEP)).await {
                Ok(()) => {
                    self.verdicts(sent).await;
                    return End::Committed;
                }
                Err(Trouble::TakeBack(_, code)) => objections.whole = Some(code),
                Err(trouble) => return End::Unknown(trouble.to_string(), objections),
            }
        }
        let aborted = self.step(|instance| instance.abort_transaction(STEP)).await;
        if aborted.is_ok() {
            objections.records.extend(self.verdicts(sent).await);
        }
        match aborted {
            Ok(()) => End::TakenBack(objections),
            Err(trouble) => End::Unknown(trouble.to_string(), objections),
        }
    }

    /// The records that failed, of the `sent` ones of a transaction that has ended.
    async fn verdicts(&mut self, sent: usize) -> Vec<(Part, Code)> {
        let mut failures = Vec::new();
        for _ in 0..sent {
            // All have been reported by now.
            let Ok(Some(report)) = tokio::time::timeout(STEP, self.reports.recv()).await else {
                break;
            };
            if let Err(code) = report.result {
                failures.push(((report.ticket.job, report.ticket.index), code));
            }
        }
        failures
    }

    /// Runs a step of the client on a thread that may block, and takes it up again while that helps.
    async fn step(&self, step: fn(&Instance) -> Result<(), Trouble>) -> Result<(), Trouble> {
        let deadline = Instant::now() + STEPS_MAX;
        loop {
            let instance = Arc::clone(&self.instance);
            let done = tokio::task::spawn_blocking(move || step(&instance)).await;
            match done.unwrap_or_else(|panic| Err(Trouble::Lost(panic.to_string()))) {
                Err(Trouble::Again(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                ended => return ended,
            }
        }
    }

    /// The way to end a transaction early, from beside the task that waits for its end.
    pub(super) fn purger(&self) -> Weak<Instance> {
        Arc::downgrade(&self.instance)
    }

    /// Ends the producer without making the caller wait.
    pub(super) fn discard(self) {
        // A step may still run on it; whoever holds it last ends it.
        if let Some(instance) = Arc::into_inner(self.instance) {
            instance.discard();
        }
    }
}
