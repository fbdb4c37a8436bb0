//! What the polling thread and the relay's calls share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::{EventId, Undecodable};
use rdkafka::message::{Headers, Message, OwnedMessage};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::options::SourceOptions;
use super::partition::Facts;
use super::state::{Name, State};
use crate::IncomingRecord;

/// Trouble is shown for so long after it was last seen.
const FAULT_LASTS: Duration = Duration::from_secs(10);

/// How far a partition is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionLag {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// How many records are not finished, read or not. Counted by offsets: while something is unfinished, the markers
    /// of transactions and what was compacted away behind it count as well. None means that all is finished.
    pub records: u64,
}

/// What the client last reported of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) app_offset: i64,
    pub(super) next_offset: i64,
    pub(super) committed_offset: i64,
    pub(super) end: i64,
    /// What the client has fetched and not given out – of all partitions, since they share a queue.
    pub(super) queued: i64,
    /// Since when it could have moved, and has not.
    pub(super) since: Instant,
}

impl Reported {
    fn has_more(&self) -> bool {
        self.next_offset < self.end
    }
}

/// Trouble that claims should show.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    at: Instant,
    pub(super) reason: String,
    /// Somebody has to act.
    pub(super) lasting: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    reports: Mutex<HashMap<Name, Reported>>,
    fault: Mutex<Option<Fault>>,
    polled: Mutex<Instant>,
    pub(super) options: SourceOptions,
    /// Something may be due.
    pub(super) arrived: Notify,
    /// The polling thread has left the group and is gone.
    pub(super) ended: CancellationToken,
    joined: AtomicBool,
    stopping: AtomicBool,
}

impl Shared {
    pub(super) fn new(options: SourceOptions) -> Self {
        Self {
            state: Mutex::default(),
            reports: Mutex::default(),
            fault: Mutex::default(),
            polled: Mutex::new(Instant::now()),
            options,
            arrived: Notify::new(),
            ended: CancellationToken::new(),
            joined: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reports(&self) -> MutexGuard<'_, HashMap<Name, Reported>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record that was polled; whether its partition is to be paused.
    pub(super) fn take(&self, record: OwnedMessage) -> bool {
        let facts = facts(&record, &self.options);
        let mut state = self.state();
        let partition = state.push(record, facts, Instant::now());
        let full = partition.is_some_and(|partition| !partition.paused && partition.is_full(&self.options));
        drop(state);
        self.recover();
        self.arrived.notify_one();
        full
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn note_joined(&self, joined: bool) {
        self.joined.store(joined, Ordering::Relaxed);
    }

    pub(super) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Relaxed)
    }

    pub(super) fn note_poll(&self) {
        *self.polled.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn since_poll(&self) -> Duration {
        self.polled
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    /// Notes trouble. Said once for as long as it lasts: the client repeats itself many times a second.
    pub(super) fn fail(&self, reason: String, lasting: bool) {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let known = fault.as_ref().filter(|fault| fault.at.elapsed() < FAULT_LASTS);
        if known.is_none_or(|known| known.lasting != lasting) {
            tracing::warn!(%reason, "the kafka consumer is in trouble");
        }
        let at = Instant::now();
        *fault = Some(Fault { at, reason, lasting });
    }

    /// Something works again.
    pub(super) fn recover(&self) {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        if fault.is_some() {
            tracing::info!("the kafka consumer works again");
        }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.clone().filter(|fault| fault.at.elapsed() < FAULT_LASTS)
    }

    /// Takes what the client reports of a partition.
    pub(super) fn report(&self, name: Name, mut reported: Reported) {
        let (mut reports, state) = (self.reports(), self.state());
        let mut partitions = state.partitions();
        let paused = partitions.any(|(paused, partition)| *paused == name && partition.paused);
        // While it need not move, it does not begin to be late.
        let idle = paused || !reported.has_more();
        if let Some(before) = reports.get(&name).filter(|_| !idle) {
            let moved =
                (before.app_offset, before.next_offset) != (reported.app_offset, reported.next_offset);
            if !moved {
                reported.since = before.since;
            }
        }
        reports.insert(name, reported);
    }

    /// What was reported of it was of an earlier assignment.
    pub(super) fn forget_report(&self, name: &Name) {
        self.reports().remove(name);
    }

    pub(super) fn forget_reports(&self) {
        self.reports().clear();
    }

    /// A partition that has more to read, is not paused, and has not moved for too long.
    pub(super) fn stalled(&self) -> Option<Name> {
        let (reports, state) = (self.reports(), self.state());
        let mut read = state.partitions().filter(|(_, partition)| !partition.paused);
        let stalled = read.find(|(name, _)| {
            reports.get(*name).is_some_and(|reported| {
                reported.has_more() && reported.since.elapsed() > self.options.stall_timeout
            })
        });
        stalled.map(|(name, _)| name.clone())
    }

    pub(super) fn lags(&self) -> Vec<PartitionLag> {
        let (reports, state) = (self.reports(), self.state());
        let lags = state.partitions().filter_map(|(name, partition)| {
            let reported = reports.get(name)?;
            let known = partition.to_commit().or(partition.committed);
            let finished = match partition.entries.keys().next() {
                Some(oldest) => *oldest,
                // All that was read is finished, and what it read past is no record: the marker of a transaction, or
                // what has expired.
                None if reported.queued == 0 => known
                    .unwrap_or(reported.committed_offset)
                    .max(reported.next_offset),
                None => known
                    .unwrap_or(reported.committed_offset)
                    .max(reported.app_offset),
            };
            let records = u64::try_from(reported.end - finished.max(0)).unwrap_or(0);
            let (topic, partition) = name.clone();
            Some(PartitionLag {
                topic,
                partition,
                records,
            })
        });
        lags.collect()
    }
}

/// Decodes a record far enough to know how to treat it.
fn facts(record: &OwnedMessage, options: &SourceOptions) -> Facts {
    let bytes = record.payload().map_or(0, <[u8]>::len) as u64;
    match decode(record, options) {
        Ok(envelope) => Facts {
            id: envelope.id,
            event_type: Some(envelope.event_type),
            key: envelope.ordering_key.map(|key| (envelope.tenant_id, key)),
            bytes,
        },
        Err(undecodable) => Facts {
            id: id_of_header(record).unwrap_or_else(|| id_of_place(record)),
            event_type: undecodable.event_type,
            key: None,
            bytes,
        },
    }
}

pub(super) fn decode(
    record: &OwnedMessage,
    options: &SourceOptions,
) -> Result<outbox_core::Envelope, Undecodable> {
    let headers: Vec<_> = record.headers().map_or_else(Vec::new, |headers| {
        headers.iter().map(|header| (header.key, header.value)).collect()
    });
    let incoming =
        IncomingRecord::new(record.payload(), &headers).with_timestamp_ms(record.timestamp().to_millis());
    options.reader.envelope(&incoming)
}

/// The id of a record that cannot be decoded otherwise.
fn id_of_header(record: &OwnedMessage) -> Option<EventId> {
    let mut headers = record.headers()?.iter();
    let id = headers
        .find(|header| header.key == "outbox-id" || header.key == "ce_id")?
        .value?;
    std::str::from_utf8(id).ok()?.parse().ok()
}

/// An id for a record that tells none: the same for the same place, whoever reads it.
fn id_of_place(record: &OwnedMessage) -> EventId {
    // FNV-1a of 128 bits: it only has to spread.
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let place = record
        .topic()
        .bytes()
        .chain(record.partition().to_be_bytes())
        .chain(record.offset().to_be_bytes());
    let hash = place.fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    EventId::from_uuid(Uuid::from_u128(hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> Name {
        ("t".to_owned(), 0)
    }

    impl Reported {
        /// Ten records were read, of `end`.
        fn of(end: i64, app_offset: i64) -> Self {
            Self {
                app_offset,
                next_offset: 10,
                committed_offset: 4,
                end,
                queued: 0,
                since: Instant::now(),
            }
        }
    }

    fn report(shared: &Shared, end: i64, app_offset: i64) {
        shared.report(name(), Reported::of(end, app_offset));
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_that_has_more_and_does_not_move_is_stalled() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        report(&shared, 20, 10);

        tokio::time::advance(shared.options.stall_timeout).await;
        report(&shared, 30, 10);
        assert_eq!(shared.stalled(), None);
        tokio::time::advance(Duration::from_secs(1)).await;

        assert_eq!(shared.stalled(), Some(name()));
        report(&shared, 30, 11);
        assert_eq!(shared.stalled(), None, "it moved");
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_that_was_paused_for_long_has_its_time_when_it_goes_on() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        let pause = |paused| {
            if let Some(partition) = shared.state().partition_mut(&name()) {
                partition.paused = paused;
            }
        };
        report(&shared, 20, 10);
        pause(true);
        tokio::time::advance(shared.options.stall_timeout * 2).await;
        report(&shared, 20, 10);

        pause(false);
        assert_eq!(shared.stalled(), None);
        tokio::time::advance(shared.options.stall_timeout * 2).await;
        assert_eq!(shared.stalled(), Some(name()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quiet_partition_is_not_late_because_another_is_busy() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        report(&shared, 10, 10);
        tokio::time::advance(shared.options.stall_timeout * 2).await;

        // The client counts what it has fetched of all partitions together.
        let busy = Reported {
            queued: 3,
            committed_offset: -1001,
            ..Reported::of(10, 10)
        };
        shared.report(name(), busy);

        assert_eq!(shared.stalled(), None);
        assert_eq!(
            shared.lags().iter().map(|lag| lag.records).collect::<Vec<_>>(),
            [0]
        );
        report(&shared, 20, 10);
        assert_eq!(shared.stalled(), None, "there is more since now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_that_is_read_to_its_end_or_paused_is_not_stalled() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        report(&shared, 10, 10);
        tokio::time::advance(shared.options.stall_timeout * 2).await;
        assert_eq!(shared.stalled(), None);

        report(&shared, 20, 10);
        if let Some(partition) = shared.state().partition_mut(&name()) {
            partition.paused = true;
        }
        assert_eq!(shared.stalled(), None);
    }

    #[tokio::test]
    async fn a_lag_counts_from_what_was_read_to_the_end_if_nothing_is_held() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        let lags = || shared.lags().iter().map(|lag| lag.records).collect::<Vec<_>>();

        report(&shared, 20, 10);
        assert_eq!(lags(), [10]);
        report(&shared, 10, 10);
        assert_eq!(
            lags(),
            [0],
            "whatever lies between what is committed and the end, it is no record"
        );
    }
}
