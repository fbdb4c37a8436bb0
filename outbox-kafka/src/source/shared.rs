//! What the polling thread and the relay's calls share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::message::{Message, OwnedMessage};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::letters::{Delivery, Grave, Letter};
use super::options::SourceOptions;
use super::reading::facts;
use super::reports::{PartitionLag, Reported, Reports};
use super::state::{Name, State};

/// Trouble is shown for so long after it was last seen.
const FAULT_LASTS: Duration = Duration::from_secs(10);

/// Trouble that claims should show.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    at: Instant,
    pub(super) reason: String,
    /// Somebody has to act.
    pub(super) lasting: bool,
}

impl Fault {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FAULT_LASTS
    }
}

/// The last trouble of each kind.
#[derive(Debug, Default)]
struct Faults {
    passing: Option<Fault>,
    lasting: Option<Fault>,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    reports: Mutex<Reports>,
    faults: Mutex<Faults>,
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
            faults: Mutex::default(),
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

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record that was polled; whether its partition is to be paused.
    pub(super) fn take(&self, record: OwnedMessage) -> bool {
        let facts = facts(&record, &self.options);
        let (name, offset) = ((record.topic().to_owned(), record.partition()), record.offset());
        let mut state = self.state();
        let pushed = state.push(record, facts, Instant::now());
        let full = pushed.is_some_and(|(partition, _)| !partition.paused && partition.is_full(&self.options));
        let went_back = pushed.and_then(|(_, went_back)| went_back);
        drop(state);
        if let Some(expected) = went_back {
            say_went_back(&name, expected, offset);
        }
        self.recover();
        self.arrived.notify_one();
        full
    }

    /// Takes what has become of a letter; the letter, unless it is of an assignment that has ended.
    pub(super) fn delivered(&self, grave: Grave, delivery: Delivery) -> Option<Letter> {
        let letter = self.state().delivered(grave, delivery, Instant::now());
        // Later events of its key may be due now.
        self.arrived.notify_one();
        letter
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

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes trouble. Said once for as long as it lasts: the client repeats itself many times a second.
    pub(super) fn fail(&self, reason: String, lasting: bool) {
        let mut faults = self.faults();
        let last = if lasting {
            &mut faults.lasting
        } else {
            &mut faults.passing
        };
        if !last.as_ref().is_some_and(Fault::is_fresh) {
            tracing::warn!(%reason, "the kafka consumer is in trouble");
        }
        let at = Instant::now();
        *last = Some(Fault { at, reason, lasting });
    }

    /// Something works again.
    pub(super) fn recover(&self) {
        let faults = std::mem::take(&mut *self.faults());
        if faults.passing.or(faults.lasting).is_some() {
            tracing::info!("the kafka consumer works again");
        }
    }

    /// The trouble there is. Of what keeps it from joining, as a topic that is not there, the client tells only once.
    pub(super) fn fault(&self) -> Option<Fault> {
        let faults = self.faults();
        let lasting = faults.lasting.as_ref();
        let lasting = lasting.filter(|fault| fault.is_fresh() || !self.has_joined());
        let passing = faults.passing.as_ref().filter(|fault| fault.is_fresh());
        lasting.or(passing).cloned()
    }

    // ORDER: reports before state, wherever both are held.

    /// Takes what the client reports of a partition.
    pub(super) fn report(&self, name: &Name, reported: Reported) {
        let known = reported.committed_offset;
        let (mut reports, mut state) = (self.reports(), self.state());
        let finding = reports.take(name, reported, &state);
        let Some(partition) = state.partition_mut(name) else {
            return;
        };
        let (wanted, next) = (partition.committed, partition.next());
        if finding.is_uncommitted {
            partition.committed = None;
        }
        let went_back = finding.went_back.filter(|to| partition.retreat(*to));
        drop((reports, state));
        if finding.is_uncommitted {
            tracing::debug!(partition = ?name, ?wanted, known, "a commit failed, and is repeated");
        }
        if let (Some(expected), Some(offset)) = (next, went_back) {
            say_went_back(name, expected, offset);
        }
    }

    /// What was reported of it was of an earlier assignment.
    pub(super) fn forget_report(&self, name: &Name) {
        self.reports().forget(name);
    }

    pub(super) fn forget_reports(&self) {
        self.reports().clear();
    }

    /// A partition that should move and has not for too long.
    pub(super) fn stalled(&self) -> Option<Name> {
        self.reports().stalled(&self.state(), self.options.stall_timeout)
    }

    pub(super) fn lags(&self) -> Vec<PartitionLag> {
        self.reports().lags(&self.state())
    }
}

fn say_went_back((topic, partition): &Name, expected: i64, offset: i64) {
    tracing::warn!(
        topic,
        partition,
        expected,
        offset,
        "outbox_offsets_went_back: the partition has lost its end, as after an unclean election of its leader, and is \
         read again from here"
    );
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Arc;

    use rdkafka::Timestamp;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// Takes what is said as a warning.
    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<String>>>);

    #[derive(Default)]
    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0 += &format!("{field}={value:?} ");
        }
    }

    impl Subscriber for Said {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == Level::WARN
        }

        fn event(&self, event: &Event<'_>) {
            let mut line = Line::default();
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
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
    fn offsets_that_go_back_are_said_once_and_their_records_are_taken() {
        let (shared, said) = (Shared::new(SourceOptions::default()), Said::default());
        shared.state().assign(("t".to_owned(), 3));
        let take = |offset| {
            let time = Timestamp::NotAvailable;
            shared.take(OwnedMessage::new(
                None,
                None,
                "t".to_owned(),
                time,
                3,
                offset,
                None,
            ));
        };

        tracing::subscriber::with_default(said.clone(), || [7, 8, 10, 8, 9, 10].map(take));

        let said = said.0.lock().unwrap();
        assert_eq!(said.len(), 1, "{said:?}");
        for part in [
            "outbox_offsets_went_back",
            "partition=3",
            "expected=11",
            "offset=8",
        ] {
            assert!(said[0].contains(part), "{said:?}");
        }
        assert_eq!(shared.state().totals().unfinished, 6);
    }

    #[tokio::test(start_paused = true)]
    async fn what_keeps_it_from_joining_is_shown_until_it_has_joined() {
        let shared = Shared::new(SourceOptions::default());
        let reason = |shared: &Shared| shared.fault().map(|fault| fault.reason);
        shared.fail("no such topic".to_owned(), true);
        shared.fail("no broker".to_owned(), false);

        tokio::time::advance(FAULT_LASTS * 2).await;
        assert_eq!(reason(&shared).as_deref(), Some("no such topic"));
        shared.note_joined(true);
        shared.recover();
        assert_eq!(reason(&shared), None);

        shared.fail("not ours to read".to_owned(), true);
        assert_eq!(reason(&shared).as_deref(), Some("not ours to read"));
        tokio::time::advance(FAULT_LASTS * 2).await;
        assert_eq!(reason(&shared), None, "it reads, and would be told again");
    }
}
