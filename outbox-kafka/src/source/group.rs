//! What the consumer group tells us: assignments, revocations, statistics, errors.

use std::sync::Arc;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::statistics::Statistics;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::reports::Reported;
use super::shared::Shared;
use super::state::Name;
use crate::client_log::ClientLog;

/// The callbacks of the consumer. They run in the polling thread.
pub(super) struct Group {
    pub(super) log: ClientLog,
    pub(super) shared: Arc<Shared>,
}

pub(super) fn names(list: &TopicPartitionList) -> Vec<Name> {
    list.elements()
        .iter()
        .map(|element| (element.topic().to_owned(), element.partition()))
        .collect()
}

impl Group {
    /// Commits what is finished of these partitions, while they are still ours: the client gives them up when it has the
    /// answer. This thread does not wait for it, because a broker that hangs may keep it for minutes.
    fn commit_last(&self, consumer: &BaseConsumer<Self>, revoked: &[Name]) {
        let offsets = finished(&self.shared, |name| revoked.contains(name));
        if offsets.count() == 0 {
            return;
        }
        // A refusal means that they were not ours any more: then somebody else handles the same records again.
        if let Err(error) = consumer.commit(&offsets, CommitMode::Async) {
            tracing::debug!(%error, "the last commit of revoked partitions failed");
        }
    }

    /// Gives them up; those of them that were paused.
    fn revoke(&self, revoked: &[Name]) -> TopicPartitionList {
        let (mut state, mut paused) = (self.shared.state(), TopicPartitionList::new());
        for name in revoked {
            if state
                .partition_mut(name)
                .is_some_and(|partition| partition.paused)
            {
                paused.add_partition(&name.0, name.1);
            }
            state.revoke(name);
        }
        paused
    }
}

/// The offsets to commit, and notes them as committed. The client does not tell whether they are: its statistics do.
pub(super) fn finished(shared: &Shared, of: impl Fn(&Name) -> bool) -> TopicPartitionList {
    let mut state = shared.state();
    let mut list = TopicPartitionList::new();
    let names: Vec<Name> = state
        .partitions()
        .map(|(name, _)| name.clone())
        .filter(|name| of(name))
        .collect();
    for name in names {
        let Some(partition) = state.partition_mut(&name) else {
            continue;
        };
        let Some(next) = partition.to_commit() else {
            continue;
        };
        if list
            .add_partition_offset(&name.0, name.1, Offset::Offset(next))
            .is_ok()
        {
            partition.committed = Some(next);
        }
    }
    list
}

impl ClientContext for Group {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.log.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if error.rdkafka_error_code() == Some(Code::AllBrokersDown) {
            self.shared.fail("all brokers are down".to_owned(), false);
        }
        self.log.error(error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        for (topic, facts) in statistics.topics {
            for (number, partition) in facts.partitions.into_iter().filter(|(number, _)| *number >= 0) {
                let reported = Reported {
                    app_offset: partition.app_offset,
                    next_offset: partition.next_offset,
                    committed_offset: partition.committed_offset,
                    end: partition.ls_offset,
                    queued: partition.fetchq_cnt,
                    is_begun: !matches!(&*partition.fetch_state, "none" | "stopping" | "stopped"),
                    since: Instant::now(),
                };
                self.shared.report(&(topic.clone(), number), reported);
            }
        }
    }
}

impl ConsumerContext for Group {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                let assigned = names(list);
                tracing::info!(partitions = ?assigned, "partitions assigned");
                assigned.iter().for_each(|name| self.shared.forget_report(name));
                let mut state = self.shared.state();
                assigned.into_iter().for_each(|name| state.assign(name));
                drop(state);
                self.shared.note_joined(true);
                self.shared.recover();
            }
            Rebalance::Revoke(list) => {
                let (revoked, lost) = (names(list), consumer.assignment_lost());
                tracing::info!(partitions = ?revoked, lost, "partitions revoked");
                if !lost {
                    self.commit_last(consumer, &revoked);
                }
                // ORDER: after the last commit; from here on nothing of these partitions can be settled or committed.
                let paused = self.revoke(&revoked);
                // The client keeps a pause over the loss and the return of a partition, our state of it does not. Not
                // when it returns: a resumption then may drop the answer to where its reading begins.
                if let Err(error) = consumer.resume(&paused) {
                    tracing::debug!(%error, "could not resume what is revoked");
                }
            }
            Rebalance::Error(error) => self.shared.fail(format!("rebalance: {error}"), false),
        }
    }
}
