//! The dead-letter topic.

use std::time::Duration;

use outbox_core::ConfigError;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, OwnedMessage};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::options::DeadLetters;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

/// How long a dead letter may take to be acknowledged.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// Where dead letters go.
pub(super) enum Burial {
    Topic(String, FutureProducer<ClientLog>),
    Drop,
}

impl Burial {
    pub(super) fn new(settings: &KafkaSettings, letters: DeadLetters) -> Result<Self, ConfigError> {
        let DeadLetters::Topic(topic) = letters else {
            return Ok(Self::Drop);
        };
        let config = settings.client_config(&[
            ("enable.idempotence", "true".to_owned()),
            ("message.timeout.ms", ACKNOWLEDGED_WITHIN.as_millis().to_string()),
            // A record that was small enough to be read should not be too large with a few headers more.
            ("message.max.bytes", "100000000".to_owned()),
            ("linger.ms", "2".to_owned()),
        ]);
        let producer =
            FutureProducer::from_config_and_context(&config, ClientLog::new(settings, "dead letters"));
        Ok(Self::Topic(
            topic.as_str().to_owned(),
            producer.map_err(|error| settings.refused(&error))?,
        ))
    }

    /// Returns once the record is safe, or known to be dropped.
    pub(super) async fn bury(
        &self,
        record: &OwnedMessage,
        attempts: u32,
        reason: &str,
    ) -> Result<(), KafkaError> {
        let (topic, partition, offset) = (record.topic(), record.partition(), record.offset());
        tracing::warn!(
            topic,
            partition,
            offset,
            attempts,
            reason,
            "an event is a dead letter"
        );
        let Self::Topic(dead_letters, producer) = self else {
            return Ok(());
        };
        let headers = headers(record, attempts, reason);
        let mut dead = FutureRecord::<[u8], [u8]>::to(dead_letters).headers(headers);
        (dead.key, dead.payload) = (record.key(), record.payload());
        let sent = producer.send(dead, ACKNOWLEDGED_WITHIN).await;
        sent.map(drop).map_err(|(error, _)| error)
    }
}

/// The record's own headers, and ours about where and why it died; those of an earlier death are replaced.
fn headers(record: &OwnedMessage, attempts: u32, reason: &str) -> OwnedHeaders {
    const OURS: &str = "outbox-dead-";
    let mut headers = OwnedHeaders::new();
    for header in record.headers().into_iter().flat_map(Headers::iter) {
        if !header.key.starts_with(OURS) {
            headers = headers.insert(header);
        }
    }
    let coordinates = [
        ("topic", record.topic().to_owned()),
        ("partition", record.partition().to_string()),
        ("offset", record.offset().to_string()),
        ("attempts", attempts.to_string()),
        ("reason", reason.to_owned()),
    ];
    for (name, value) in coordinates {
        headers = headers.insert(Header {
            key: &format!("{OURS}{name}"),
            value: Some(&value),
        });
    }
    headers
}
