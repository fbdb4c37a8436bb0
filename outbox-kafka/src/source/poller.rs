//! The polling thread: it never waits for a handler, so the group never takes this consumer for dead.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::time::Instant;

use super::burial::Burial;
use super::group::{Group, finished};
use super::shared::Shared;
use super::state::Name;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

const POLL: Duration = Duration::from_millis(100);
/// Between two looks at letters that are under way.
const SOON: Duration = Duration::from_millis(5);
const HOUSEKEEPING: Duration = Duration::from_millis(50);
/// How long closing waits for dead letters that are under way.
const LETTERS_WITHIN: Duration = Duration::from_secs(3);
/// How long what was read may take to be finished before its consumer ends early.
const HELD_WITHIN: Duration = Duration::from_secs(10);
/// Between two consumers.
const PAUSE: Duration = Duration::from_secs(1);

/// What a consumer is made from.
pub(super) struct Recipe {
    pub(super) settings: KafkaSettings,
    pub(super) config: ClientConfig,
    pub(super) topics: Vec<String>,
}

impl Recipe {
    pub(super) fn consumer(&self, shared: &Arc<Shared>) -> KafkaResult<BaseConsumer<Group>> {
        let context = Group {
            log: ClientLog::new(&self.settings, "source"),
            shared: Arc::clone(shared),
        };
        let consumer = BaseConsumer::from_config_and_context(&self.config, context)?;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics)?;
        Ok(consumer)
    }

    /// What an error is about that lasts until somebody acts; `None` if it passes by itself. The client says no names.
    fn cause(&self, code: Code) -> Option<String> {
        match code {
            Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::TopicAuthorizationFailed => {
                Some(format!("of {}", self.topics.join(", ")))
            }
            Code::GroupAuthorizationFailed => Some(format!("group {}", self.config.get("group.id")?)),
            _ => None,
        }
    }
}

/// Polls until told to stop, with a new consumer whenever one is of no use any more.
pub(super) fn run(recipe: &Recipe, first: BaseConsumer<Group>, burial: &Burial, shared: &Arc<Shared>) {
    // However the thread ends.
    let _ended = shared.ended.clone().drop_guard();
    let mut consumer = Some(first);
    while !shared.is_stopping() {
        let Some(current) = consumer.take() else {
            std::thread::sleep(PAUSE);
            match recipe.consumer(shared) {
                Ok(made) => consumer = Some(made),
                Err(error) => shared.fail(recipe.settings.redact(&error.to_string()), true),
            }
            continue;
        };
        let ended = Poller {
            consumer: &current,
            recipe,
            burial,
            shared,
        }
        .poll();
        match ended {
            Some(why) => tracing::warn!(%why, "the kafka consumer is made anew"),
            None => see_letters_through(burial, shared),
        }
        close(current, shared);
    }
}

/// Waits until no letter is under way, so that what it is of need not come again.
fn see_letters_through(burial: &Burial, shared: &Shared) {
    let end = Instant::now() + LETTERS_WITHIN;
    loop {
        burial.hand_over(shared);
        let now = Instant::now();
        if now > end || !shared.state().is_burying(now) {
            return;
        }
        std::thread::sleep(SOON);
    }
}

/// Leaves the group. Whatever was assigned is revoked, with a last commit, which the client waits for as it ends.
fn close(consumer: BaseConsumer<Group>, shared: &Shared) {
    commit(&consumer, shared);
    let names: Vec<Name> = shared
        .state()
        .partitions()
        .map(|(name, _)| name.clone())
        .collect();
    let mut state = shared.state();
    names.iter().for_each(|name| state.revoke(name));
    drop(state);
    shared.note_joined(false);
    shared.forget_reports();
    drop(consumer);
}

fn commit(consumer: &BaseConsumer<Group>, shared: &Shared) {
    let offsets = finished(shared, |_| true);
    if offsets.count() == 0 {
        return;
    }
    if let Err(error) = consumer.commit(&offsets, CommitMode::Async) {
        tracing::debug!(%error, "a commit failed, and is repeated");
        let mut state = shared.state();
        for name in super::group::names(&offsets) {
            if let Some(partition) = state.partition_mut(&name) {
                partition.committed = None;
            }
        }
    }
}

struct Poller<'a> {
    consumer: &'a BaseConsumer<Group>,
    recipe: &'a Recipe,
    burial: &'a Burial,
    shared: &'a Shared,
}

impl Poller<'_> {
    /// Polls until told to stop (`None`), or until the consumer is of no use.
    fn poll(&self) -> Option<String> {
        let (mut next_care, mut next_commit) = (Instant::now(), Instant::now());
        while !self.shared.is_stopping() {
            match self.consumer.poll(POLL) {
                Some(Ok(message)) if self.shared.take(message.detach()) => self.pause_and_resume(),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    self.note(&error);
                    if is_unreadable(&error) {
                        // ORDER: nothing more is taken. The client would give out the records before the batch again and
                        // again, and any behind it would be committed for it too.
                        self.see_held_through();
                        let why = self.recipe.settings.redact(&error.to_string());
                        return Some(format!("a batch cannot be read: {why}"));
                    }
                }
                None => {}
            }
            self.shared.note_poll();
            let now = Instant::now();
            if now < next_care {
                continue;
            }
            next_care = now + HOUSEKEEPING;
            self.pause_and_resume();
            self.burial.renew();
            self.burial.hand_over(self.shared);
            if now >= next_commit {
                next_commit = now + self.shared.options.commit_interval;
                commit(self.consumer, self.shared);
            }
            if let Some((_, why)) = self.consumer.client().fatal_error() {
                return Some(self.recipe.settings.redact(&why));
            }
            if let Some((topic, partition)) = self.shared.stalled() {
                return Some(format!(
                    "nothing comes from {topic} [{partition}], although there is more or its reading has not begun"
                ));
            }
        }
        None
    }

    /// Waits until what was read is finished, so that it need not come again, for ever before the same end.
    fn see_held_through(&self) {
        let end = Instant::now() + HELD_WITHIN;
        while !self.shared.is_stopping() && Instant::now() < end {
            if self.shared.state().totals().unfinished == 0 {
                return;
            }
            self.shared.note_poll();
            self.burial.hand_over(self.shared);
            std::thread::sleep(HOUSEKEEPING);
        }
    }

    fn note(&self, error: &KafkaError) {
        let cause = error
            .rdkafka_error_code()
            .and_then(|code| self.recipe.cause(code));
        let reason = cause
            .as_ref()
            .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
        self.shared
            .fail(self.recipe.settings.redact(&reason), cause.is_some());
    }

    /// Stops reading partitions that hold enough, and goes on with those that have room again.
    fn pause_and_resume(&self) {
        let options = &self.shared.options;
        let (mut pause, mut resume) = (TopicPartitionList::new(), TopicPartitionList::new());
        let mut state = self.shared.state();
        let names: Vec<Name> = state.partitions().map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(partition) = state.partition_mut(&name) else {
                continue;
            };
            let (full, roomy) = (partition.is_full(options), partition.is_roomy(options));
            if full && !partition.paused {
                partition.paused = true;
                pause.add_partition(&name.0, name.1);
            } else if roomy && partition.paused {
                partition.paused = false;
                resume.add_partition(&name.0, name.1);
            }
        }
        drop(state);
        for (list, outcome) in [
            (&pause, self.consumer.pause(&pause)),
            (&resume, self.consumer.resume(&resume)),
        ] {
            if let Err(error) = outcome {
                // The partition is being revoked; its state goes with it.
                tracing::debug!(%error, partitions = list.count(), "could not pause or resume");
            }
        }
    }
}

/// Whether a batch failed its checksum, which the client looks at where `check.crcs` is set, or is of no known format: the
/// client passes over such a one.
fn is_unreadable(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::BadMessage | Code::NotImplemented)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_batch_that_cannot_be_read_ends_its_consumer() {
        let ends = |code| is_unreadable(&KafkaError::MessageConsumption(code));

        assert!(ends(Code::BadMessage) && ends(Code::NotImplemented));
        assert!(!ends(Code::UnknownTopicOrPartition) && !ends(Code::BrokerTransportFailure));
    }
}
