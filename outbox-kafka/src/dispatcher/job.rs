//! One run of records on its way, and what is answered.

use std::time::Duration;

use outbox_core::{BoxError, Delivered, Delivery, Failure, FailureKind, RunResult};
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{OutgoingRecord, TopicName};

/// A delivery of more than this, or of a quarter of its time, is slow.
const SLOW_AFTER: Duration = Duration::from_secs(2);

/// Tells jobs apart; later jobs have greater numbers.
pub(super) type JobId = u64;

/// How far a job came, and what ended it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) delivered: usize,
    pub(super) failure: Option<Failure>,
}

impl Answer {
    pub(super) fn into_result(self) -> RunResult {
        let mut results: RunResult = (0..self.delivered).map(|_| Ok(Delivered::Handled)).collect();
        results.extend(self.failure.map(Err));
        results
    }
}

/// Records to be sent one behind the other, and the way back.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) records: Vec<OutgoingRecord>,
    /// What comes behind the records: an event that cannot be one.
    pub(super) failure: Option<Failure>,
    /// When the answer has to be on its way.
    pub(super) deadline: Instant,
    pub(super) cancelled: CancellationToken,
    pub(super) reply: oneshot::Sender<Answer>,
}

impl Request {
    /// Whether it has waited for so long, of so much that it may take, that its topic may be the reason.
    pub(super) fn is_slow(&self, timeout: Duration, now: Instant) -> bool {
        let usual = (timeout / 4).min(SLOW_AFTER);
        self.deadline.saturating_duration_since(now) + usual <= timeout
    }

    /// Whether nobody waits for the answer any more.
    pub(super) fn is_called_off(&self) -> bool {
        self.reply.is_closed() || self.cancelled.is_cancelled()
    }

    pub(super) fn answer(self, delivered: usize, failure: Option<Failure>) {
        // Nobody may be waiting any more; then the event is simply tried again.
        let _ = self.reply.send(Answer { delivered, failure });
    }
}

/// The deadline of a run: the dispatcher's own, or that of its first delivery if it comes sooner.
pub(super) fn deadline(own: Instant, run: &[Delivery]) -> Instant {
    // The answer has to be back before the relay gives the delivery up.
    let before_the_relay = run.first().map(|first| first.deadline - super::ANSWER_TIME);
    before_the_relay.map_or(own, |theirs| theirs.min(own))
}

pub(super) fn outage(error: impl Into<BoxError>) -> Failure {
    Failure::new(FailureKind::Outage, error)
}

/// The broker's word about a record.
pub(super) fn refused(kind: FailureKind, topic: Option<&TopicName>, code: Code) -> Failure {
    let topic = topic.map_or("?", TopicName::as_str);
    Failure::new(
        kind,
        format!("topic {topic}: the broker refuses the record: {code}"),
    )
}

pub(super) fn called_off() -> Failure {
    Failure::new(FailureKind::NotTried, "the delivery was called off")
}

/// What is charged to an event whose time is up: nothing, unless its own topic is in trouble.
pub(super) fn late(trouble: Option<&str>, otherwise: &str) -> Failure {
    match trouble {
        Some(why) => Failure::new(FailureKind::Retry, why),
        None => outage(otherwise),
    }
}
