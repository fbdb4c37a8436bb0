//! The dead-letter topic.
//!
//! Letters are handed to a producer and not waited for: whatever becomes of one, its answer comes to the producer's own
//! thread, and is noted there. Neither settlements nor the polling of the source know how long that takes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_core::ConfigError;
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ProducerContext, ThreadedProducer};
use tokio::time::Instant;

use super::letters::{Delivery, Form, Grave, Letter};
use super::options::DeadLetters;
use super::reading::headers_of;
use super::shared::Shared;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

/// How long a dead letter may take to be acknowledged.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);
/// Letters that cannot be written are said so at most this often.
const SAID_EVERY: Duration = Duration::from_secs(15);

/// Where dead letters go.
pub(super) enum Burial {
    Topic {
        topic: String,
        producer: Box<ThreadedProducer<Undertaker>>,
    },
    Drop,
}

/// Learns what becomes of letters.
pub(super) struct Undertaker {
    topic: String,
    shared: Arc<Shared>,
    settings: KafkaSettings,
    log: ClientLog,
    /// When it was last said that letters cannot be written.
    said: Mutex<Option<Instant>>,
}

impl Burial {
    pub(super) fn new(
        settings: &KafkaSettings,
        letters: DeadLetters,
        shared: &Arc<Shared>,
    ) -> Result<Self, ConfigError> {
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
        let undertaker = Undertaker {
            topic: topic.as_str().to_owned(),
            shared: Arc::clone(shared),
            settings: settings.clone(),
            log: ClientLog::new(settings, "dead letters"),
            said: Mutex::default(),
        };
        let producer = ThreadedProducer::from_config_and_context(&config, undertaker);
        Ok(Self::Topic {
            topic: topic.as_str().to_owned(),
            producer: Box::new(producer.map_err(|error| settings.refused(&error))?),
        })
    }

    /// Hands over the letters that are due. Waits for nothing.
    pub(super) fn hand_over(&self, shared: &Shared) {
        // A statement of its own: the lock is not held while letters are handed over.
        let letters = shared.state().letters(Instant::now());
        for letter in letters {
            let grave = letter.grave;
            match self {
                Self::Topic { topic, producer } => {
                    if let Err(error) = send(topic, producer, &letter) {
                        producer.client().context().note(grave, Some(&error));
                    }
                }
                Self::Drop => {
                    if let Some(letter) = shared.delivered(grave, Delivery::Safe) {
                        say_dead(&letter);
                    }
                }
            }
        }
    }
}

fn send(topic: &str, producer: &ThreadedProducer<Undertaker>, letter: &Letter) -> Result<(), KafkaError> {
    let mut dead = BaseRecord::<[u8], [u8], Box<Grave>>::with_opaque_to(topic, Box::new(letter.grave));
    dead = dead.headers(headers(letter));
    if letter.form != Form::Coordinates {
        dead.key = letter.record.key();
    }
    if letter.form == Form::Whole {
        dead.payload = letter.record.payload();
    }
    producer.send(dead).map_err(|(error, _)| error)
}

impl Undertaker {
    /// Notes what has become of a letter, and says it.
    fn note(&self, grave: Grave, error: Option<&KafkaError>) {
        let delivery = match error {
            None => Delivery::Safe,
            Some(error) if is_too_large(error) => Delivery::TooLarge,
            Some(_) => Delivery::Unwritten,
        };
        let Some(letter) = self.shared.delivered(grave, delivery) else {
            return;
        };
        match error {
            None => say_dead(&letter),
            Some(_) if delivery == Delivery::TooLarge => say_cut(&letter),
            Some(error) => self.say_unwritten(error),
        }
    }

    fn say_unwritten(&self, error: &KafkaError) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_some_and(|said| said.elapsed() < SAID_EVERY) {
            return;
        }
        *said = Some(Instant::now());
        tracing::error!(
            topic = self.topic,
            unwritten = self.shared.state().totals().unburied,
            error = self.settings.redact(&error.to_string()),
            "dead letters cannot be written: they and the later events of their keys wait"
        );
    }
}

impl ClientContext for Undertaker {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.log.error(error, reason);
    }
}

impl ProducerContext for Undertaker {
    type DeliveryOpaque = Box<Grave>;

    fn delivery(&self, result: &DeliveryResult<'_>, grave: Box<Grave>) {
        match result {
            Ok(_) => self.note(*grave, None),
            // The source has ended: nobody waits for it any more, and it comes again.
            Err((error, _))
                if matches!(
                    error.rdkafka_error_code(),
                    Some(Code::PurgeQueue | Code::PurgeInflight)
                ) => {}
            Err((error, _)) => self.note(*grave, Some(error)),
        }
    }
}

fn say_dead(letter: &Letter) {
    tracing::warn!(
        topic = letter.record.topic(),
        partition = letter.record.partition(),
        offset = letter.record.offset(),
        attempts = letter.attempts,
        reason = &*letter.reason,
        "an event is a dead letter"
    );
}

fn say_cut(letter: &Letter) {
    tracing::error!(
        topic = letter.record.topic(),
        partition = letter.record.partition(),
        offset = letter.record.offset(),
        form = ?letter.form.cut().unwrap_or(letter.form),
        "a dead letter is too large for its topic, and is cut: raise the topic's max.message.bytes"
    );
}

fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
    )
}

/// The record's own headers, and ours about where and why it died; those of an earlier death are replaced.
fn headers(letter: &Letter) -> OwnedHeaders {
    const OURS: &str = "outbox-dead-";
    let (record, form) = (&letter.record, letter.form);
    let mut headers = match headers_of(record) {
        _ if form == Form::Coordinates => OwnedHeaders::new(),
        Some(kept) => kept
            .into_iter()
            .filter(|(name, _)| !name.starts_with(OURS))
            .fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value })
            }),
        // They cannot be read one by one.
        None => record.headers().cloned().unwrap_or_default(),
    };
    let mut coordinates = vec![
        ("topic", record.topic().to_owned()),
        ("partition", record.partition().to_string()),
        ("offset", record.offset().to_string()),
        ("attempts", letter.attempts.to_string()),
        ("reason", letter.reason.to_string()),
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
