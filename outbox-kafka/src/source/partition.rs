//! One assigned partition: what was read of it, and what is finished. Pure.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use outbox_core::{ClaimToken, EventId, EventType, OrderingKey, PartName, Position, PrefixTracker, TenantId};
use rdkafka::message::OwnedMessage;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::options::SourceOptions;

/// Events that share it are handled one at a time.
pub(super) type Key = (TenantId, OrderingKey);

/// What has to be known of a record to decide whether it may be claimed.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) id: EventId,
    pub(super) event_type: Option<EventType>,
    pub(super) key: Option<Key>,
    pub(super) bytes: u64,
}

/// Who holds an event, and until when.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) token: ClaimToken,
    pub(super) until: Instant,
    /// Nothing else was claimed with it: its loss counts.
    pub(super) alone: bool,
    pub(super) lost: CancellationToken,
}

/// A record that is not finished.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) record: OwnedMessage,
    pub(super) facts: Facts,
    pub(super) attempt: u32,
    pub(super) lost_claims: u32,
    pub(super) done: Vec<PartName>,
    /// Why it has failed for good, if only its letter is still to be written.
    pub(super) dead: Option<String>,
    pub(super) due: Instant,
    /// Its claim was lost: it is claimed again in a claim of its own.
    pub(super) goes_alone: bool,
    pub(super) lease: Option<Lease>,
}

/// A partition in the hands of this consumer.
#[derive(Debug)]
pub(super) struct Partition {
    /// Tells this assignment from all others.
    pub(super) epoch: i64,
    pub(super) entries: BTreeMap<i64, Entry>,
    tracker: PrefixTracker,
    pub(super) bytes: u64,
    pub(super) paused: bool,
    /// The offset up to which everything has been committed.
    pub(super) committed: Option<i64>,
}

impl Partition {
    pub(super) fn new(epoch: i64) -> Self {
        Self {
            epoch,
            entries: BTreeMap::new(),
            tracker: PrefixTracker::new(),
            bytes: 0,
            paused: false,
            committed: None,
        }
    }

    /// Takes a record. One that was taken before, as after a seek, changes nothing.
    pub(super) fn push(&mut self, offset: i64, record: OwnedMessage, facts: Facts, now: Instant) {
        if !self.tracker.begin(Position(offset)) {
            return;
        }
        self.bytes += facts.bytes;
        let entry = Entry {
            record,
            facts,
            attempt: 1,
            lost_claims: 0,
            done: Vec::new(),
            dead: None,
            due: now,
            goes_alone: false,
            lease: None,
        };
        self.entries.insert(offset, entry);
    }

    /// Ends leases whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        for entry in self.entries.values_mut() {
            let Some(lease) = entry.lease.take_if(|lease| lease.until <= now) else {
                continue;
            };
            lease.lost.cancel();
            entry.goes_alone = true;
            entry.lost_claims += u32::from(lease.alone);
        }
    }

    /// The offsets that may be claimed now, oldest first: due, of no excluded type, and not behind an earlier event
    /// of their key that is held, waits or is excluded.
    pub(super) fn due(&self, now: Instant, excluded: &[EventType]) -> Vec<i64> {
        let (mut due, mut blocked) = (Vec::new(), HashSet::new());
        for (offset, entry) in &self.entries {
            let is_excluded = entry
                .facts
                .event_type
                .as_ref()
                .is_some_and(|name| excluded.contains(name));
            let free = entry.lease.is_none() && entry.due <= now && !is_excluded;
            match &entry.facts.key {
                Some(key) if free && !blocked.contains(key) => due.push(*offset),
                Some(key) => {
                    blocked.insert(key);
                }
                None if free => due.push(*offset),
                None => {}
            }
        }
        due
    }

    /// When the next waiting event is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let free = self.entries.values().filter(|entry| entry.lease.is_none());
        free.map(|entry| entry.due).min()
    }

    /// The entry that is held by this token, if it still is.
    pub(super) fn held(&mut self, token: ClaimToken, offset: i64) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&offset)?;
        entry
            .lease
            .as_ref()
            .is_some_and(|lease| lease.token == token)
            .then_some(entry)
    }

    /// A record is done with.
    pub(super) fn finish(&mut self, offset: i64) {
        if let Some(entry) = self.entries.remove(&offset) {
            self.bytes -= entry.facts.bytes;
            self.tracker.finish(Position(offset));
        }
    }

    /// The offset to commit: the one behind the finished prefix, if it has grown since the last commit.
    pub(super) fn to_commit(&self) -> Option<i64> {
        let next = self.tracker.finished_up_to()?.0 + 1;
        (self.committed != Some(next)).then_some(next)
    }

    /// How far it was read past its oldest unfinished record.
    pub(super) fn beyond(&self) -> usize {
        self.tracker.beyond()
    }

    /// It holds enough: nothing more should be read.
    pub(super) fn is_full(&self, options: &SourceOptions) -> bool {
        self.entries.len() >= options.buffered_events_max
            || self.bytes >= options.buffered_bytes_max
            || self.beyond() >= options.window_max
    }

    /// There is room for more again.
    pub(super) fn is_roomy(&self, options: &SourceOptions) -> bool {
        self.entries.len() <= options.buffered_events_max / 2
            && self.bytes <= options.buffered_bytes_max / 2
            && self.beyond() <= options.window_max / 2
    }

    /// The assignment is over: whoever holds something of it is told.
    pub(super) fn revoke(&mut self) {
        let leases = self.entries.values_mut().filter_map(|entry| entry.lease.take());
        leases.for_each(|lease| lease.lost.cancel());
    }

    /// Puts an event back.
    pub(super) fn put_back(&mut self, offset: i64, now: Instant, after: Duration) {
        if let Some(entry) = self.entries.get_mut(&offset) {
            entry.lease = None;
            entry.due = now + after;
        }
    }
}
