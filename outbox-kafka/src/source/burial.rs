//! The dead-letter topic.
//!
//! Letters are handed to a producer and not waited for: whatever becomes of one, its answer comes to the producer's own
//! thread, and is noted there. Neither settlements nor the polling of the source know how long that takes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::ConfigError;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use tokio::time::Instant;

use super::letters::{Delivery, Form, Grave, Letter, Letters};
use super::options::DeadLetters;
use super::reading::headers_of;
use super::shared::Shared;
use super::undertaker::{Undertaker, say_dead};
use crate::settings::KafkaSettings;

/// How long a dead letter may take to be acknowledged.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);

/// A producer that is of no use any more is replaced when it is this old: so often at most, should that go on.
const RENEWED_AFTER: Duration = Duration::from_secs(5);

/// Where dead letters go.
pub(super) enum Burial {
    Topic(Box<Writer>),
    Drop,
}

/// Writes to the dead-letter topic.
pub(super) struct Writer {
    topic: String,
    config: ClientConfig,
    settings: KafkaSettings,
    shared: Arc<Shared>,
    producer: Mutex<Made>,
}

/// A producer, and since when.
struct Made {
    producer: ThreadedProducer<Undertaker>,
    at: Instant,
    /// It leaves letters without an answer: the thread that has them may be gone.
    is_silent: bool,
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
        let topic = topic.as_str().to_owned();
        let made = make(&config, Undertaker::new(&topic, settings, shared));
        Ok(Self::Topic(Box::new(Writer {
            producer: Mutex::new(made.map_err(|error| settings.refused(&error))?),
            topic,
            config,
            settings: settings.clone(),
            shared: Arc::clone(shared),
        })))
    }

    /// Hands over the letters that are due. Waits for nothing.
    pub(super) fn hand_over(&self, shared: &Shared) {
        // A statement of its own: the lock is not held while letters are handed over.
        let letters = shared.state().letters(Instant::now());
        match self {
            Self::Topic(writer) => writer.hand_over(&letters),
            Self::Drop => {
                let dropped = letters
                    .due
                    .iter()
                    .filter_map(|letter| shared.delivered(letter.grave, Delivery::Safe));
                dropped.for_each(|letter| say_dead(&letter));
            }
        }
    }

    /// Replaces the client if it has given up for good, as when it was not allowed to write for a while, or is silent.
    pub(super) fn renew(&self) {
        if let Self::Topic(writer) = self {
            writer.renew();
        }
    }
}

fn make(config: &ClientConfig, undertaker: Undertaker) -> KafkaResult<Made> {
    let producer = ThreadedProducer::from_config_and_context(config, undertaker)?;
    Ok(Made {
        producer,
        at: Instant::now(),
        is_silent: false,
    })
}

impl Writer {
    fn made(&self) -> MutexGuard<'_, Made> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_over(&self, letters: &Letters) {
        if let Some(overdue) = letters.overdue {
            self.note_overdue(overdue);
            self.renew();
        }
        if letters.due.is_empty() {
            return;
        }
        let made = self.made();
        for letter in &letters.due {
            if let Err(error) = send(&self.topic, &made.producer, letter) {
                made.producer.client().context().note(letter.grave, Some(&error));
            }
        }
    }

    /// Notes when the last letter was handed over that should have had its answer. The producer before this one may have had it.
    fn note_overdue(&self, since: Instant) {
        let mut made = self.made();
        made.is_silent |= since >= made.at;
    }

    fn renew(&self) {
        let mut made = self.made();
        let why = match made.producer.client().fatal_error() {
            Some((_, why)) => self.settings.redact(&why),
            None if made.is_silent => "letters are overdue that should have been answered".to_owned(),
            None => return,
        };
        if made.at.elapsed() <= RENEWED_AFTER {
            return;
        }
        tracing::warn!(%why, "the producer of dead letters is made anew");
        let undertaker = Undertaker::new(&self.topic, &self.settings, &self.shared);
        // It panics where the system gives it no thread.
        let another = catch_unwind(AssertUnwindSafe(|| make(&self.config, undertaker)));
        let Ok(Ok(another)) = another else {
            made.at = Instant::now();
            tracing::debug!("the producer of dead letters cannot be made anew yet");
            return;
        };
        let old = std::mem::replace(&mut *made, another);
        drop(made);
        // In a thread of its own, if there is one to be had: it waits for the client's threads, which may wait for the network.
        let _ = std::thread::Builder::new().spawn(move || drop(old));
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

#[cfg(test)]
pub(super) mod tests {
    use std::num::NonZeroU32;

    use outbox_core::{ClaimRequest, KeyPolicy, Outcome, Settlement};
    use rdkafka::Timestamp;
    use rdkafka::message::OwnedMessage;

    use super::super::options::SourceOptions;
    use super::*;
    use crate::TopicName;

    /// A broker that is not there.
    pub(in super::super) fn settings() -> KafkaSettings {
        KafkaSettings::new("127.0.0.1:9")
    }

    /// What is shared, with that many events that have failed for good.
    pub(in super::super) fn with_deaths(count: i64) -> Arc<Shared> {
        let shared = Arc::new(Shared::new(SourceOptions::default()));
        shared.state().assign(("t".to_owned(), 0));
        for offset in 0..count {
            let (topic, time) = ("t".to_owned(), Timestamp::NotAvailable);
            shared.take(OwnedMessage::new(None, None, topic, time, 0, offset, None));
        }
        let request = ClaimRequest::new(NonZeroU32::MAX, Duration::from_secs(60));
        let taken = shared.state().claim(&request, Instant::now());
        for taken in taken {
            let settlement = Settlement {
                token: taken.token,
                position: taken.position,
                id: taken.facts.id,
                outcome: Outcome::Failed {
                    error: "no".to_owned(),
                    done: vec![],
                    key: KeyPolicy::GoOn,
                },
            };
            assert!(shared.state().settle(&settlement, Instant::now()));
        }
        shared
    }

    #[tokio::test(start_paused = true)]
    async fn a_producer_that_leaves_letters_unanswered_is_replaced_once() {
        let shared = with_deaths(1);
        let letters = DeadLetters::Topic(TopicName::new("dead").unwrap());
        let burial = Burial::new(&settings(), letters, &shared).unwrap();
        let Burial::Topic(writer) = &burial else { panic!() };
        let first = writer.made().at;
        let pass = async |seconds| {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            burial.hand_over(&shared);
            burial.renew();
            writer.made().at
        };

        assert_eq!(pass(0).await, first);
        assert_eq!(pass(29).await, first, "its answer may still come");
        let second = pass(1).await;
        assert_ne!(second, first);
        assert_eq!(
            pass(10).await,
            second,
            "the letter has been handed to it just now"
        );

        writer.note_overdue(first);
        assert_eq!(pass(10).await, second, "that letter was the first one's");
    }
}
