//! All partitions of a consumer: claiming, settling, extending. Pure: no client, no clock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{ClaimRequest, ClaimToken, Outcome, Position, Settlement};
use rdkafka::message::{Message, OwnedMessage};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::SourceTotals;
use super::letters::Death;
use super::partition::{Entry, Facts, Key, Lease, Partition};

/// A topic and one of its partitions.
pub(super) type Name = (String, i32);

/// One event of a claim, before it is decoded.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) token: ClaimToken,
    pub(super) position: Position,
    pub(super) record: Arc<OwnedMessage>,
    pub(super) facts: Facts,
    pub(super) attempt: u32,
    pub(super) lost_claims: u32,
    pub(super) done: Vec<outbox_core::PartName>,
    pub(super) lost: CancellationToken,
}

/// Everything that is assigned to this consumer.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) partitions: BTreeMap<Name, Partition>,
    /// Which partition an assignment was of.
    pub(super) epochs: HashMap<i64, Name>,
    last_epoch: i64,
    last_claim: i64,
    pub(super) last_letter: u64,
    /// Where the last claim began, so that each partition has its turn.
    turn: usize,
    completed: u64,
    pub(super) dead_letters: u64,
}

impl State {
    /// What has become of the records that were read.
    pub(super) fn totals(&self) -> SourceTotals {
        SourceTotals {
            unfinished: self
                .partitions
                .values()
                .map(|partition| partition.entries.len())
                .sum(),
            unburied: self
                .partitions
                .values()
                .map(|partition| partition.dead().count())
                .sum(),
            completed: self.completed,
            dead_letters: self.dead_letters,
        }
    }

    pub(super) fn assign(&mut self, name: Name) {
        self.revoke(&name);
        self.last_epoch += 1;
        self.epochs.insert(self.last_epoch, name.clone());
        self.partitions.insert(name, Partition::new(self.last_epoch));
    }

    /// Ends an assignment. Nothing of it can be claimed, settled or committed any more.
    pub(super) fn revoke(&mut self, name: &Name) {
        if let Some(mut partition) = self.partitions.remove(name) {
            partition.revoke();
            self.epochs.remove(&partition.epoch);
        }
    }

    /// Takes a record; the partition it is of, if that is ours, and the offset that should have come if offsets went back.
    pub(super) fn push(
        &mut self,
        record: OwnedMessage,
        facts: Facts,
        now: Instant,
    ) -> Option<(&Partition, Option<i64>)> {
        let name = (record.topic().to_owned(), record.partition());
        let partition = self.partitions.get_mut(&name)?;
        let went_back = partition.push(record, facts, now);
        Some((partition, went_back))
    }

    pub(super) fn partitions(&self) -> impl Iterator<Item = (&Name, &Partition)> {
        self.partitions.iter()
    }

    pub(super) fn partition_mut(&mut self, name: &Name) -> Option<&mut Partition> {
        self.partitions.get_mut(name)
    }

    /// Leases due events, oldest first within each partition.
    pub(super) fn claim(&mut self, request: &ClaimRequest, now: Instant) -> Vec<Taken> {
        self.partitions
            .values_mut()
            .for_each(|partition| partition.expire(now));
        let mut keys = self.held_keys();
        let mut names: Vec<Name> = self.partitions.keys().cloned().collect();
        if names.is_empty() {
            return Vec::new();
        }
        self.turn = (self.turn + 1) % names.len();
        names.rotate_left(self.turn);
        let most = usize::try_from(request.max_events.get()).unwrap_or(usize::MAX);
        let (mut taken, mut bytes) = (Vec::new(), 0_u64);
        for name in names {
            let Some(partition) = self.partitions.get_mut(&name) else {
                continue;
            };
            self.last_claim += 1;
            let token = ClaimToken::from_parts(partition.epoch, self.last_claim);
            // Keys taken in this partition by this claim go on as a run; those held elsewhere have to wait.
            let held: HashSet<Key> = keys.clone();
            for position in partition.due(now, &request.excluded_types) {
                let Some(entry) = partition.entries.get_mut(&position) else {
                    continue;
                };
                if entry.facts.key.as_ref().is_some_and(|key| held.contains(key)) {
                    continue;
                }
                let too_much = taken.len() >= most || bytes + entry.facts.bytes > request.max_bytes;
                if !taken.is_empty() && (too_much || entry.goes_alone) {
                    if too_much {
                        return taken;
                    }
                    // It waits for a claim of its own, and its followers with it.
                    break;
                }
                bytes += entry.facts.bytes;
                keys.extend(entry.facts.key.clone());
                let alone = entry.goes_alone;
                taken.push(take(entry, token, position, now + request.lease));
                if alone {
                    return taken;
                }
            }
        }
        taken
    }

    fn held_keys(&self) -> HashSet<Key> {
        let entries = self
            .partitions
            .values()
            .flat_map(|partition| partition.entries.values());
        let held = entries.filter(|entry| entry.lease.is_some());
        held.filter_map(|entry| entry.facts.key.clone()).collect()
    }

    /// Ends one event of a claim; whether it was still held.
    pub(super) fn settle(&mut self, settlement: &Settlement, now: Instant) -> bool {
        let (token, position) = (settlement.token, settlement.position.0);
        let name = self.epochs.get(&token.number());
        let Some(partition) = name.and_then(|name| self.partitions.get_mut(name)) else {
            return false;
        };
        partition.expire(now);
        let Some(entry) = partition.held(token, position) else {
            return false;
        };
        match &settlement.outcome {
            Outcome::Completed => {
                partition.finish(position);
                self.completed += 1;
            }
            Outcome::Retry { after, done, .. } => {
                entry.attempt = entry.attempt.saturating_add(1);
                entry.lost_claims = 0;
                entry.done.clone_from(done);
                partition.put_back(position, now, *after);
            }
            Outcome::Released { after, done } => {
                entry.done.clone_from(done);
                partition.put_back(position, now, *after);
            }
            // It is finished once it is on the dead-letter topic.
            Outcome::Failed { error, .. } => {
                entry.lease = None;
                entry.death = Some(Death::new(error, now));
            }
        }
        true
    }

    /// Keeps a claim; whether anything of it is still held.
    pub(super) fn extend(&mut self, token: ClaimToken, lease: Duration, now: Instant) -> bool {
        let name = self.epochs.get(&token.number());
        let Some(partition) = name.and_then(|name| self.partitions.get_mut(name)) else {
            return false;
        };
        partition.expire(now);
        let mut held = false;
        for lease_of in partition
            .entries
            .values_mut()
            .filter_map(|entry| entry.lease.as_mut())
        {
            if lease_of.token == token {
                lease_of.until = now + lease;
                held = true;
            }
        }
        held
    }

    /// When something that waits now may be claimed without anything new having come.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let due = self
            .partitions
            .values()
            .filter_map(|partition| partition.next_due(now));
        due.min()
    }
}

fn take(entry: &mut Entry, token: ClaimToken, position: i64, until: Instant) -> Taken {
    let lost = CancellationToken::new();
    entry.lease = Some(Lease {
        token,
        until,
        alone: entry.goes_alone,
        lost: lost.clone(),
    });
    Taken {
        token,
        position: Position(position),
        record: Arc::clone(&entry.record),
        facts: entry.facts.clone(),
        attempt: entry.attempt,
        lost_claims: entry.lost_claims,
        done: entry.done.clone(),
        lost,
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "state_world.rs"]
mod world;
