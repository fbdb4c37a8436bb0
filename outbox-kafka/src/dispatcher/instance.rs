//! One producer of librdkafka, and its reports.

use std::fmt;
use std::time::Duration;

use outbox_core::ConfigError;
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{
    BaseRecord, DeliveryResult, Producer, ProducerContext, PurgeConfig, ThreadedProducer,
};
use tokio::sync::mpsc;

use super::pipeline::Ticket;
use crate::OutgoingRecord;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

/// What became of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) ticket: Ticket,
    pub(super) result: Result<(), RDKafkaErrorCode>,
}

/// Sends reports on to the task that waits for them.
struct Reports {
    log: ClientLog,
    reports: mpsc::UnboundedSender<Report>,
}

impl ClientContext for Reports {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ProducerContext for Reports {
    type DeliveryOpaque = Box<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Box<Ticket>) {
        let result = match result {
            Ok(_) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        };
        // The task is gone only if the whole dispatcher is.
        let _ = self.reports.send(Report {
            ticket: *ticket,
            result,
        });
    }
}

/// A producer, its polling thread, and the way of its reports.
pub(super) struct Instance {
    producer: ThreadedProducer<Reports>,
}

impl Instance {
    /// Makes a producer. Connects in the background.
    pub(super) fn new(
        settings: &KafkaSettings,
        config: &ClientConfig,
        client: &'static str,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Result<Self, ConfigError> {
        let context = Reports {
            log: ClientLog::new(settings, client),
            reports,
        };
        let producer = ThreadedProducer::from_config_and_context(config, context);
        Ok(Self {
            producer: producer.map_err(|error| settings.refused(&error))?,
        })
    }

    /// Hands a record over. Never blocks.
    ///
    /// Its time is that of writing, not that of the event: retention counts from it, and an event that has waited for
    /// long would be gone from the topic before anyone reads it. Brokers also refuse what is too far ahead of them.
    pub(super) fn send(
        &self,
        record: &OutgoingRecord,
        partition: i32,
        ticket: Ticket,
    ) -> Result<(), RDKafkaErrorCode> {
        let mut headers = OwnedHeaders::new_with_capacity(record.headers.len());
        for (name, value) in &record.headers {
            headers = headers.insert(Header {
                key: name,
                value: Some(value),
            });
        }
        let mut sent: BaseRecord<'_, str, str, Box<Ticket>> =
            BaseRecord::with_opaque_to(record.topic.as_str(), Box::new(ticket))
                .partition(partition)
                .payload(record.value.as_str())
                .headers(headers);
        sent.key = record.key.as_deref();
        match self.producer.send(sent) {
            Ok(()) => Ok(()),
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
        }
    }

    /// Takes the transactional id over. Blocks.
    pub(super) fn init_transactions(&self, timeout: Duration) -> Result<(), Trouble> {
        self.producer.init_transactions(timeout).map_err(Trouble::from)
    }

    /// Begins a transaction. Blocks, for a moment.
    pub(super) fn begin_transaction(&self) -> Result<(), Trouble> {
        self.producer.begin_transaction().map_err(Trouble::from)
    }

    /// Commits the transaction. Blocks.
    pub(super) fn commit_transaction(&self, timeout: Duration) -> Result<(), Trouble> {
        self.producer.commit_transaction(timeout).map_err(Trouble::from)
    }

    /// Takes the transaction back. Blocks.
    pub(super) fn abort_transaction(&self, timeout: Duration) -> Result<(), Trouble> {
        self.producer.abort_transaction(timeout).map_err(Trouble::from)
    }

    /// Why the instance is of no use any more, if it is not.
    pub(super) fn fatal(&self) -> Option<String> {
        self.producer.client().fatal_error().map(|(_, why)| why)
    }

    /// Takes back what was not sent yet. Does not wait: the client's threads may be busy, or on their way out.
    pub(super) fn purge_queue(&self) {
        self.producer.purge(PurgeConfig::default().queue().non_blocking());
    }

    /// Takes back what was not sent yet, and gives up waiting for the rest.
    pub(super) fn purge_all(&self) {
        self.producer
            .purge(PurgeConfig::default().queue().inflight().non_blocking());
    }

    /// Ends the instance without making the caller wait.
    pub(super) fn discard(self) {
        // It joins threads and closes connections, which takes up to a second. A thread of its own, because a runtime
        // that stops would wait for its blocking tasks.
        let ended = std::thread::Builder::new()
            .name("outbox-kafka-drop".to_owned())
            .spawn(move || drop(self));
        if let Err(error) = ended {
            tracing::warn!(%error, "no thread could be had to end a kafka producer, so the sender did it");
        }
    }
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance")
    }
}

/// What an error in a transaction leaves to be done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The same step once more.
    #[error("{0}")]
    Again(String),
    /// The transaction has to be taken back.
    #[error("{0}")]
    TakeBack(String, RDKafkaErrorCode),
    /// Another producer has the id now, or the coordinator lost patience.
    #[error("another producer has taken the transactional id over, or a transaction took too long: {0}")]
    Fenced(String),
    /// The instance is of no use any more.
    #[error("{0}")]
    Lost(String),
}

impl From<KafkaError> for Trouble {
    fn from(error: KafkaError) -> Self {
        use RDKafkaErrorCode as Code;
        let why = error.to_string();
        match &error {
            KafkaError::Transaction(cause) => match cause.code() {
                Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch => Self::Fenced(why),
                _ if cause.txn_requires_abort() => Self::TakeBack(why, cause.code()),
                _ if cause.is_retriable() => Self::Again(why),
                _ => Self::Lost(why),
            },
            // Records are still under way.
            KafkaError::Flush(Code::OperationTimedOut) => Self::Again(why),
            _ => Self::Lost(why),
        }
    }
}

/// The client's settings for each kind of instance.
#[derive(Debug, Clone)]
pub(super) struct InstanceConfig {
    pub(super) settings: KafkaSettings,
    pub(super) delivery_timeout: Duration,
    pub(super) linger: Duration,
    pub(super) batch_bytes_max: usize,
    pub(super) message_bytes_max: usize,
    pub(super) queue_messages_max: usize,
}

impl InstanceConfig {
    /// What nobody else may set: the guarantees rest on it, or an option of ours says it.
    pub(super) const RESERVED: [&'static str; 18] = [
        "acks",
        "request.required.acks",
        "enable.idempotence",
        "enable.gapless.guarantee",
        "transactional.id",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "retries",
        "message.send.max.retries",
        "batch.num.messages",
        "batch.size",
        "linger.ms",
        "queue.buffering.max.ms",
        "message.max.bytes",
        "queue.buffering.max.messages",
        "delivery.report.only.error",
    ];

    /// The pipeline's. It retries for ever: the deadline of an event is ours to keep.
    pub(super) fn pipelined(&self, batch_bytes_max: usize) -> ClientConfig {
        let mut config = self.common();
        config
            .set("enable.idempotence", "true")
            .set("enable.gapless.guarantee", "true")
            .set("message.timeout.ms", "0")
            .set("linger.ms", self.linger.as_millis().to_string())
            .set("batch.size", batch_bytes_max.to_string());
        config
    }

    /// Transactions: the coordinator ends one that was left open, but not before its records have had their time.
    pub(super) fn transactional(&self, transactional_id: &str) -> ClientConfig {
        let mut config = self.common();
        let record = self.delivery_timeout.as_millis();
        config
            .set("transactional.id", transactional_id)
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", record.to_string())
            .set("transaction.timeout.ms", (record * 2).max(10_000).to_string())
            .set("linger.ms", self.linger.as_millis().to_string())
            .set("batch.size", self.batch_bytes_max.to_string());
        config
    }

    /// One record at a time. With nothing ever behind it a record needs no sequence number to stay in order, and
    /// without one no refusal can harm the instance.
    pub(super) fn careful(&self) -> ClientConfig {
        let mut config = self.common();
        config
            .set("max.in.flight", "1")
            .set("batch.num.messages", "1")
            .set("linger.ms", "0")
            .set(
                "message.timeout.ms",
                self.delivery_timeout.as_millis().to_string(),
            );
        config
    }

    fn common(&self) -> ClientConfig {
        // A request that hangs is given up, and sent again, well before the event's deadline.
        let request = (self.delivery_timeout / 2).max(Duration::from_millis(1000));
        self.settings.client_config(&[
            ("acks", "all".to_owned()),
            ("socket.timeout.ms", request.as_millis().to_string()),
            ("request.timeout.ms", request.as_millis().to_string()),
            ("message.max.bytes", self.message_bytes_max.to_string()),
            (
                "queue.buffering.max.messages",
                self.queue_messages_max.to_string(),
            ),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_what_was_written_cannot_be_turned_off() {
        let settings = KafkaSettings::new("127.0.0.1:9").with("delivery.report.only.error", "true");

        let refusal = settings.check(&InstanceConfig::RESERVED).unwrap_err();

        assert!(
            refusal.to_string().contains("delivery.report.only.error"),
            "{refusal}"
        );
    }
}
