//! What becomes of dead letters: noted and said in the producer's own thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{DeliveryResult, Message};
use rdkafka::producer::ProducerContext;
use tokio::time::Instant;

use super::letters::{Delivery, Grave, Letter};
use super::shared::Shared;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

/// Letters that cannot be written are said so at most this often.
const SAID_EVERY: Duration = Duration::from_secs(15);

/// Learns what becomes of letters.
pub(super) struct Undertaker {
    topic: String,
    shared: Arc<Shared>,
    settings: KafkaSettings,
    log: ClientLog,
    /// When it was last said that letters cannot be written.
    said: Mutex<Option<Instant>>,
}

impl Undertaker {
    pub(super) fn new(topic: &str, settings: &KafkaSettings, shared: &Arc<Shared>) -> Self {
        Self {
            topic: topic.to_owned(),
            shared: Arc::clone(shared),
            settings: settings.clone(),
            log: ClientLog::new(settings, "dead letters"),
            said: Mutex::default(),
        }
    }

    /// Notes what has become of a letter, and says it.
    pub(super) fn note(&self, grave: Grave, error: Option<&KafkaError>) {
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

    /// Takes the producer's answer. What has become of the letter is noted before it is said, and who listens to that may
    /// panic: the thread has the answers of all letters to give.
    fn answered(&self, grave: Grave, error: Option<&KafkaError>) {
        let note = || match error {
            // The producer has ended, with the source or because it was of no use any more: that is no news.
            Some(error) if is_purged(error) => {
                self.shared.delivered(grave, Delivery::Unwritten);
            }
            _ => self.note(grave, error),
        };
        // It is in the output already.
        let _ = catch_unwind(AssertUnwindSafe(note));
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
        self.answered(*grave, result.as_ref().err().map(|(error, _)| error));
    }
}

pub(super) fn say_dead(letter: &Letter) {
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

fn is_purged(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::PurgeQueue | Code::PurgeInflight)
    )
}

fn is_too_large(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
    )
}

#[cfg(test)]
mod tests {
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::super::burial::tests::{settings, with_deaths};
    use super::*;

    /// Panics at whatever is said.
    struct Broken;

    impl Subscriber for Broken {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, _: &Event<'_>) {
            panic!("a subscriber that panics");
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_panic_of_whoever_hears_of_a_letter_is_not_the_end_of_the_answers() {
        let shared = with_deaths(2);
        let undertaker = Undertaker::new("dead", &settings(), &shared);
        let letters = shared.state().letters(Instant::now()).due;

        tracing::subscriber::with_default(Broken, || {
            for letter in letters {
                undertaker.answered(letter.grave, None);
            }
        });

        assert_eq!(shared.state().totals().dead_letters, 2);
        assert_eq!(shared.state().totals().unfinished, 0);
    }
}
