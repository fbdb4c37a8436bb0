//! The dead-letter topic.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_core::ConfigError;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders, OwnedMessage};
use rdkafka::producer::future_producer::DeliveryFuture;
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::time::Instant;

use super::options::DeadLetters;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

/// How long a dead letter may take to be acknowledged.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);
/// How long dead letters wait once none could be written.
pub(super) const RESTS: Duration = Duration::from_secs(15);

/// A record that has failed for good.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) record: Box<OwnedMessage>,
    pub(super) attempts: u32,
    pub(super) reason: String,
}

/// How much of a record is written. Each form is for letters that are too large in the one before.
#[derive(Debug, Clone, Copy)]
enum Form {
    Whole,
    WithoutValue,
    Coordinates,
}

/// Where dead letters go.
pub(super) enum Burial {
    Topic(Box<Grave>),
    Drop,
}

/// The dead-letter topic.
pub(super) struct Grave {
    topic: String,
    producer: FutureProducer<ClientLog>,
    settings: KafkaSettings,
    rests_until: Mutex<Option<Instant>>,
}

impl Burial {
    pub(super) fn new(settings: &KafkaSettings, letters: DeadLetters) -> Result<Self, ConfigError> {
        let DeadLetters::Topic(topic) = letters else {
            return Ok(Self::Drop);
        };
        let given = settings.client_config(&[]);
        let mut config = settings.client_config(&[
            ("enable.idempotence", "true".to_owned()),
            ("message.timeout.ms", ACKNOWLEDGED_WITHIN.as_millis().to_string()),
            // A record that was small enough to be read should not be too large with a few headers more.
            ("message.max.bytes", "100000000".to_owned()),
            // The topic's limit is one of batches: each letter alone, so that it tells which one is too large.
            ("batch.num.messages", "1".to_owned()),
            ("linger.ms", "2".to_owned()),
            // As clients in Java place keys.
            ("partitioner", "murmur2_random".to_owned()),
        ]);
        if given
            .get("compression.type")
            .or(given.get("compression.codec"))
            .is_none()
        {
            // The record may have been compressed itself, and not fit otherwise.
            config.set("compression.type", "gzip");
        }
        let producer =
            FutureProducer::from_config_and_context(&config, ClientLog::new(settings, "dead letters"));
        Ok(Self::Topic(Box::new(Grave {
            topic: topic.as_str().to_owned(),
            producer: producer.map_err(|error| settings.refused(&error))?,
            settings: settings.clone(),
            rests_until: Mutex::default(),
        })))
    }

    /// Returns once each letter is safe, known to be dropped, or (`false`) could not be written.
    pub(super) async fn bury(&self, letters: &[Letter]) -> Vec<bool> {
        let buried = match self {
            Self::Topic(grave) if !letters.is_empty() => grave.bury(letters).await,
            _ => vec![true; letters.len()],
        };
        let safe = letters.iter().zip(&buried).filter(|(_, buried)| **buried);
        for (letter, _) in safe {
            tracing::warn!(
                topic = letter.record.topic(),
                partition = letter.record.partition(),
                offset = letter.record.offset(),
                attempts = letter.attempts,
                reason = letter.reason,
                "an event is a dead letter"
            );
        }
        buried
    }
}

impl Grave {
    async fn bury(&self, letters: &[Letter]) -> Vec<bool> {
        if self.rests() {
            return vec![false; letters.len()];
        }
        // ORDER: all are handed over before any is waited for: a topic that does not answer costs its time limit once.
        let sent: Vec<_> = letters
            .iter()
            .map(|letter| self.send(letter, Form::Whole))
            .collect();
        let (mut buried, mut trouble) = (Vec::with_capacity(letters.len()), None);
        for (letter, sent) in letters.iter().zip(sent) {
            let outcome = self.see_through(letter, sent).await;
            buried.push(outcome.is_ok());
            trouble = trouble.or(outcome.err());
        }
        if let Some(error) = trouble {
            self.say_unwritten(&error, &buried);
        }
        buried
    }

    fn send(&self, letter: &Letter, form: Form) -> KafkaResult<DeliveryFuture> {
        let headers = headers(letter, form);
        let mut dead = FutureRecord::<[u8], [u8]>::to(&self.topic).headers(headers);
        if !matches!(form, Form::Coordinates) {
            dead.key = letter.record.key();
        }
        if matches!(form, Form::Whole) {
            dead.payload = letter.record.payload();
        }
        self.producer.send_result(dead).map_err(|(error, _)| error)
    }

    async fn see_through(&self, letter: &Letter, sent: KafkaResult<DeliveryFuture>) -> KafkaResult<()> {
        let mut outcome = acknowledged(sent).await;
        for form in [Form::WithoutValue, Form::Coordinates] {
            if !outcome.as_ref().is_err_and(is_too_large) {
                break;
            }
            tracing::error!(
                topic = letter.record.topic(),
                partition = letter.record.partition(),
                offset = letter.record.offset(),
                ?form,
                "a dead letter is too large for its topic, and is cut: raise the topic's max.message.bytes"
            );
            outcome = acknowledged(self.send(letter, form)).await;
        }
        outcome
    }

    fn say_unwritten(&self, error: &KafkaError, buried: &[bool]) {
        let unwritten = buried.iter().filter(|buried| !**buried).count();
        tracing::error!(
            topic = self.topic,
            unwritten,
            error = self.settings.redact(&error.to_string()),
            "dead letters cannot be written: they and the later events of their keys wait"
        );
        if unwritten == buried.len() {
            *self.rests_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + RESTS);
        }
    }

    /// Nothing could be written a moment ago: settling everything else should not wait for the same again.
    fn rests(&self) -> bool {
        let until = self.rests_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }
}

async fn acknowledged(sent: KafkaResult<DeliveryFuture>) -> KafkaResult<()> {
    match sent?.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err((error, _))) => Err(error),
        // The producer is gone without a word.
        Err(_) => Err(KafkaError::Canceled),
    }
}

fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
    )
}

/// The record's own headers, and ours about where and why it died; those of an earlier death are replaced.
fn headers(letter: &Letter, form: Form) -> OwnedHeaders {
    const OURS: &str = "outbox-dead-";
    let (mut headers, record) = (OwnedHeaders::new(), &letter.record);
    let kept = record.headers().filter(|_| !matches!(form, Form::Coordinates));
    for header in kept.into_iter().flat_map(Headers::iter) {
        if !header.key.starts_with(OURS) {
            headers = headers.insert(header);
        }
    }
    let mut coordinates = vec![
        ("topic", record.topic().to_owned()),
        ("partition", record.partition().to_string()),
        ("offset", record.offset().to_string()),
        ("attempts", letter.attempts.to_string()),
        ("reason", letter.reason.clone()),
    ];
    if let (Form::WithoutValue | Form::Coordinates, Some(value)) = (form, record.payload()) {
        coordinates.push(("value-bytes", value.len().to_string()));
    }
    for (name, value) in coordinates {
        headers = headers.insert(Header {
            key: &format!("{OURS}{name}"),
            value: Some(&value),
        });
    }
    headers
}
