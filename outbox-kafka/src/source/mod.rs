//! A consumer group as a source of events.

mod burial;
mod group;
mod letters;
mod options;
mod partition;
mod poller;
mod reading;
mod reports;
mod shared;
mod state;
mod undertaker;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, ConfigError, Listening, Settled, Settlement, Source, SourceError,
    Wakeup,
};
use tokio::time::Instant;

pub use options::{DeadLetters, SourceOptions};
pub use reports::PartitionLag;

use self::burial::Burial;
use self::poller::Recipe;
use self::reading::decode;
use self::shared::Shared;
use self::state::Taken;
use crate::TopicName;
use crate::settings::KafkaSettings;

/// What a source has come to since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceTotals {
    /// Records that were read and are not finished, of the partitions assigned now.
    pub unfinished: usize,
    /// Of these, the records that have failed for good and are not on the dead-letter topic yet.
    pub unburied: usize,
    /// Records whose handling was completed.
    pub completed: u64,
    /// Records that went to the dead-letter topic, or were dropped in its place.
    pub dead_letters: u64,
}

/// The polling thread never waits for anything; if it has been silent for so long, it is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// How long closing waits for a broker.
const CLOSED_WITHIN: Duration = Duration::from_secs(5);

/// What the guarantees rest on.
const RESERVED: [&str; 10] = [
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "partition.assignment.strategy",
    "isolation.level",
    "enable.partition.eof",
    "statistics.interval.ms",
    // With it, a dead letter that is safe would never be known to be.
    "delivery.report.only.error",
    // When a dead letter without an answer has none to come rests on ours; the second is another name of the first.
    "message.timeout.ms",
    "delivery.timeout.ms",
];

/// A consumer group as a [`Source`]: the relay that handles it is the one that handles Postgres.
///
/// - An offset is committed only when its record and all before it on the partition are finished, and only while the
///   partition is ours. A crash or a rebalance repeats records, and skips none: handlers need the inbox.
/// - A thread of its own polls, whatever the handlers do. A partition that holds enough unfinished records is paused.
/// - A failed try is repeated in place, with the relay's backoff. Later events of its key wait, other keys go on.
/// - Attempts and parts done are kept in memory: after a crash or a rebalance they start anew.
/// - What has failed for good, or cannot be decoded, goes to the dead-letter topic, and the partition goes on. A
///   [`KeyPolicy`](outbox_core::KeyPolicy) other than going on cannot be kept here: a topic has no place to park.
/// - A dead letter that is too large for its topic is written without its value. One that cannot be written at all
///   waits, with the later events of its key and the offsets behind it. It is tried again after a second, then after twice
///   as long each time, up to a quarter of a minute, without its handlers; the log says so as an error. Nothing else waits
///   for it until the partition has been read `window_max` records further, or too many wait: then the partition is paused.
/// - If a partition loses its end, as after an unclean election of its leader, what comes again from a lower offset is
///   handled, and the log says `outbox_offsets_went_back`. What had been read of the lost end is handled all the same. The
///   client may pass over what it had fetched in advance of the end that remains.
/// - When a partition is revoked, the claims on it are lost: their cancellation fires, their settlements change
///   nothing.
///
/// New groups begin at the oldest record; set `auto.offset.reset` in the settings for anything else.
pub struct KafkaSource {
    shared: Arc<Shared>,
    burial: Arc<Burial>,
}

impl KafkaSource {
    /// Joins a group and reads these topics.
    ///
    /// # Errors
    /// [`ConfigError`] when librdkafka does not take the settings, or one of them is not the user's to set.
    pub fn new(
        settings: &KafkaSettings,
        (group, topics): (&str, &[TopicName]),
        dead_letters: DeadLetters,
        options: SourceOptions,
    ) -> Result<Self, ConfigError> {
        settings.check(&RESERVED)?;
        options.check()?;
        if topics.is_empty() {
            return Err(ConfigError::new("topics", "empty", "it takes at least one topic"));
        }
        let given = settings.client_config(&[]);
        let mut config = settings.client_config(&[
            ("group.id", group.to_owned()),
            ("enable.auto.commit", "false".to_owned()),
            ("enable.auto.offset.store", "false".to_owned()),
            ("partition.assignment.strategy", "cooperative-sticky".to_owned()),
            ("isolation.level", "read_committed".to_owned()),
            ("statistics.interval.ms", "5000".to_owned()),
        ]);
        if given.get("auto.offset.reset").is_none() {
            config.set("auto.offset.reset", "earliest");
        }
        let recipe = Recipe {
            settings: settings.clone(),
            config,
            topics: topics.iter().map(|topic| topic.as_str().to_owned()).collect(),
        };
        // ORDER: before there is a thread and a member of the group, which nobody would end if this were refused.
        let shared = Arc::new(Shared::new(options));
        let burial = Arc::new(Burial::new(settings, dead_letters, &shared)?);
        let first = recipe
            .consumer(&shared)
            .map_err(|error| settings.refused(&error))?;
        let (polled, handed_over) = (Arc::clone(&shared), Arc::clone(&burial));
        std::thread::Builder::new()
            .name("outbox-kafka-poll".to_owned())
            .spawn(move || poller::run(&recipe, first, &handed_over, &polled))
            .map_err(|error| {
                ConfigError::new("the polling thread", error, "the system has to allow a thread")
            })?;
        Ok(Self { shared, burial })
    }

    /// How far each assigned partition is behind, as last reported.
    #[must_use]
    pub fn lags(&self) -> Vec<PartitionLag> {
        self.shared.lags()
    }

    /// What the source has come to since it was made.
    #[must_use]
    pub fn totals(&self) -> SourceTotals {
        self.shared.state().totals()
    }

    /// Waits for the dead letters that are under way, commits what is finished and leaves the group, so that others take
    /// over at once. Call it after the relay has stopped; dropping the source does the same without waiting for it.
    ///
    /// A broker that does not answer is waited for at most five seconds, of these three for dead letters; the group then
    /// finds out by itself. An event whose letter is not safe by then comes again to whoever reads its partition next.
    ///
    /// # Cancel safety
    /// It goes on in the background.
    pub async fn close(&self) {
        self.shared.stop();
        // The thread is nobody's to wait for: neither the runtime nor the process ends later because of it.
        let ended = tokio::time::timeout(CLOSED_WITHIN, self.shared.ended.cancelled()).await;
        if ended.is_err() {
            tracing::warn!("the kafka consumer has not left its group in time, and is left to itself");
        }
    }

    /// Trouble to report instead of an empty claim.
    fn trouble(&self) -> Option<SourceError> {
        if self.shared.since_poll() > STUCK_AFTER {
            return Some(SourceError::unavailable(
                "claim",
                "the polling thread is stuck or has ended",
            ));
        }
        let fault = self.shared.fault()?;
        Some(if fault.lasting {
            SourceError::misconfigured("claim", fault.reason)
        } else {
            SourceError::unavailable("claim", fault.reason)
        })
    }

    fn claimed(&self, taken: Taken) -> Claimed {
        let mut claimed = match decode(&taken.record, &self.shared.options) {
            Ok(envelope) => Claimed::new(taken.token, taken.position, envelope),
            Err(why) => Claimed::undecodable(taken.token, taken.position, taken.facts.id, why),
        };
        claimed.attempt = taken.attempt;
        claimed.lost_claims = taken.lost_claims;
        claimed.done = taken.done;
        claimed.lost = taken.lost;
        claimed
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl std::fmt::Debug for KafkaSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaSource")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Source for KafkaSource {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        let taken = self.shared.state().claim(&request, Instant::now());
        match self.trouble() {
            Some(trouble) if taken.is_empty() => Err(trouble),
            _ => Ok(taken.into_iter().map(|taken| self.claimed(taken)).collect()),
        }
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        let now = Instant::now();
        let lost = settlements
            .iter()
            .filter(|settlement| !self.shared.state().settle(settlement, now))
            .map(|settlement| (settlement.token, settlement.position))
            .collect();
        self.burial.hand_over(&self.shared);
        self.shared.arrived.notify_one();
        Ok(Settled::except(lost))
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        let (mut state, now) = (self.shared.state(), Instant::now());
        let lost = tokens.iter().filter(|token| !state.extend(**token, lease, now));
        Ok(lost.copied().collect())
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        let end = Instant::now() + timeout;
        let due = self.shared.state().next_due(Instant::now());
        tokio::select! {
            () = self.shared.arrived.notified() => Wakeup::Hint,
            () = tokio::time::sleep_until(due.unwrap_or(end).min(end)) => match due {
                Some(due) if due < end => Wakeup::Hint,
                _ => Wakeup::Timeout,
            },
        }
    }

    fn listening(&self) -> Listening {
        if self.shared.has_joined() && self.shared.since_poll() < STUCK_AFTER {
            Listening::Up
        } else {
            Listening::Down
        }
    }
}
