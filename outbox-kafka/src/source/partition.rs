//! One assigned partition: what was read of it, and what is finished. Pure.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{ClaimToken, EventId, EventType, OrderingKey, PartName, Position, PrefixTracker, TenantId};
use rdkafka::message::{Message, OwnedMessage};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::letters::Death;
use super::options::SourceOptions;
use super::reading::headers_of;

/// Between the positions of one offset before and after offsets have gone back: more records than a partition ever has.
const GENERATION: i64 = 1 << 48;

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
    pub(super) record: Arc<OwnedMessage>,
    pub(super) facts: Facts,
    pub(super) attempt: u32,
    pub(super) lost_claims: u32,
    pub(super) done: Vec<PartName>,
    /// It has failed for good: no handler may see it again, only its letter has to be written.
    pub(super) death: Option<Death>,
    pub(super) due: Instant,
    /// Its claim was lost: it is claimed again in a claim of its own.
    pub(super) goes_alone: bool,
    /// It was read of an end that the log has lost since.
    is_adrift: bool,
    pub(super) lease: Option<Lease>,
}

impl Entry {
    /// Nobody holds it, and it may be handled.
    fn is_free(&self) -> bool {
        self.lease.is_none() && self.death.is_none()
    }
}

/// A partition in the hands of this consumer.
#[derive(Debug)]
pub(super) struct Partition {
    /// Tells this assignment from all others.
    pub(super) epoch: i64,
    /// By position: the offset, and how often offsets have gone back before, times [`GENERATION`].
    pub(super) entries: BTreeMap<i64, Entry>,
    /// The last record that was taken; the next has a higher offset.
    last: Option<Arc<OwnedMessage>>,
    /// How often offsets have gone back.
    generation: i64,
    tracker: PrefixTracker,
    pub(super) bytes: u64,
    pub(super) paused: bool,
    /// The offset up to which everything has been committed.
    pub(super) committed: Option<i64>,
    /// Where reading began, or where the offsets went back to: to be committed at once. The group's offset does not go
    /// back with a log that has lost its end, and a group without an offset would begin elsewhere after a crash.
    begin: Option<i64>,
    /// Nothing from this offset on is known to be on the log: the client reads on from there, and nothing has come yet.
    retreated: Option<i64>,
}

impl Partition {
    pub(super) fn new(epoch: i64) -> Self {
        Self {
            epoch,
            entries: BTreeMap::new(),
            last: None,
            generation: 0,
            tracker: PrefixTracker::new(),
            bytes: 0,
            paused: false,
            committed: None,
            begin: None,
            retreated: None,
        }
    }

    /// Takes a record. If the partition's offsets went back, the one that should have come.
    pub(super) fn push(&mut self, record: OwnedMessage, facts: Facts, now: Instant) -> Option<i64> {
        let offset = record.offset();
        // The client gives out the last record once more if it is pausing the partition at that moment, as in a rebalance.
        if self.last.as_ref().is_some_and(|last| is_the_same(last, &record)) {
            return None;
        }
        let went_back = self.next().filter(|next| offset < *next);
        if went_back.is_some() {
            self.go_back(offset);
        }
        self.retreated = None;
        self.begin.get_or_insert(offset);
        let record = Arc::new(record);
        self.last = Some(Arc::clone(&record));
        let position = self.generation * GENERATION + offset;
        self.tracker.begin(Position(position));
        self.bytes += facts.bytes;
        let entry = Entry {
            record,
            facts,
            attempt: 1,
            lost_claims: 0,
            done: Vec::new(),
            death: None,
            due: now,
            goes_alone: false,
            is_adrift: false,
            lease: None,
        };
        self.entries.insert(position, entry);
        went_back
    }

    /// The log has lost its end, from this offset on or from behind it, and was written anew: the same offset may be
    /// another record now. What was read of the old end is kept and handled before the new one, but is no part of the
    /// log any more: only what is read again counts for what may be committed.
    fn go_back(&mut self, to: i64) {
        self.generation += 1;
        self.tracker = PrefixTracker::new();
        self.committed = None;
        for (position, entry) in &mut self.entries {
            entry.is_adrift |= entry.record.offset() >= to;
            if !entry.is_adrift {
                self.tracker.begin(Position(*position));
            }
        }
        self.begin = Some(self.oldest().unwrap_or(to));
    }

    /// The client reads on from there, which is lower than what should come next, and nothing has come yet. A crash now
    /// must not pass over what will be written there. Whether what was read is still there is not known: all of it that
    /// is unfinished counts for what may be committed.
    pub(super) fn retreat(&mut self, to: i64) -> bool {
        let begin = self.oldest().unwrap_or(to).min(to);
        let is_ahead = self
            .to_commit()
            .or(self.committed)
            .is_some_and(|next| next > begin);
        if is_ahead {
            self.tracker = PrefixTracker::new();
            for (position, _) in self.entries.iter().filter(|(_, entry)| !entry.is_adrift) {
                self.tracker.begin(Position(*position));
            }
            self.committed = None;
            self.begin = Some(begin);
        }
        self.retreated = Some(to);
        is_ahead
    }

    /// The offset behind the last record that was taken.
    pub(super) fn next(&self) -> Option<i64> {
        self.last.as_ref().map(|last| last.offset() + 1)
    }

    /// The offset of the oldest unfinished record that is on the partition.
    pub(super) fn oldest(&self) -> Option<i64> {
        let mut entries = self.entries.values();
        let oldest = entries.find(|entry| !entry.is_adrift);
        oldest.map(|entry| entry.record.offset())
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

    /// The positions that may be claimed now, oldest first: due, of no excluded type, and not behind an earlier event
    /// of their key that is held, waits or is excluded.
    pub(super) fn due(&self, now: Instant, excluded: &[EventType]) -> Vec<i64> {
        let (mut due, mut blocked) = (Vec::new(), HashSet::new());
        for (position, entry) in &self.entries {
            let is_excluded = entry
                .facts
                .event_type
                .as_ref()
                .is_some_and(|name| excluded.contains(name));
            let free = entry.is_free() && entry.due <= now && !is_excluded;
            match &entry.facts.key {
                Some(key) if free && !blocked.contains(key) => due.push(*position),
                Some(key) => {
                    blocked.insert(key);
                }
                None if free => due.push(*position),
                None => {}
            }
        }
        due
    }

    /// When the next event is due that waits for its time. What is due already waits for something else, such as an
    /// earlier event of its key.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let free = self.entries.values().filter(|entry| entry.is_free());
        free.map(|entry| entry.due).filter(|due| *due > now).min()
    }

    /// The entry that is held by this token, if it still is.
    pub(super) fn held(&mut self, token: ClaimToken, position: i64) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&position)?;
        entry
            .lease
            .as_ref()
            .is_some_and(|lease| lease.token == token)
            .then_some(entry)
    }

    /// A record is done with.
    pub(super) fn finish(&mut self, position: i64) {
        if let Some(entry) = self.entries.remove(&position) {
            self.bytes -= entry.facts.bytes;
            self.tracker.finish(Position(position));
        }
    }

    /// The offset to commit: the one behind the finished prefix, else where that begins, if it has not been committed.
    pub(super) fn to_commit(&self) -> Option<i64> {
        let finished = self.tracker.finished_up_to();
        let next = finished
            .map(|position| position.0 % GENERATION + 1)
            .or(self.begin)?;
        let next = self.retreated.map_or(next, |to| next.min(to));
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
    pub(super) fn put_back(&mut self, position: i64, now: Instant, after: Duration) {
        if let Some(entry) = self.entries.get_mut(&position) {
            entry.lease = None;
            entry.due = now + after;
        }
    }
}

/// Whether it is that very record. An end that was written anew may have the offset, but not the rest too.
fn is_the_same(one: &OwnedMessage, other: &OwnedMessage) -> bool {
    one.offset() == other.offset()
        && one.timestamp() == other.timestamp()
        && one.key() == other.key()
        && one.payload() == other.payload()
        && headers_of(one) == headers_of(other)
}
