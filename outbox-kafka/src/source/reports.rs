//! What the client reports of its partitions: how far each is behind, and whether it still moves. Pure.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::state::{Name, State};

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
    /// Its reading has begun, or where it begins is being asked for. It never is if the client got an error instead of the
    /// group's offsets; no records are known to be there then either.
    pub(super) is_begun: bool,
    /// Since when it could have moved, and has not.
    pub(super) since: Instant,
}

impl Reported {
    fn could_move(&self) -> bool {
        !self.is_begun || self.next_offset < self.end
    }

    /// What is another if it has moved.
    fn place(&self) -> (bool, i64, i64) {
        (self.is_begun, self.app_offset, self.next_offset)
    }
}

/// What was ours when something was reported: the last commit, and which offset should come next.
#[derive(Debug, Clone, Copy, Default)]
struct Ours {
    committed: Option<i64>,
    next: Option<i64>,
}

/// What a report tells that something has to be done about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Finding {
    /// Our last commit is older than the report before and is not what the client knows of: it failed, of which nobody is
    /// told, or one from before it was late and undid it.
    pub(super) is_uncommitted: bool,
    /// The client reads on from this offset, which is lower than what should come next.
    pub(super) went_back: Option<i64>,
}

/// What was last reported of each partition.
#[derive(Debug, Default)]
pub(super) struct Reports(HashMap<Name, (Reported, Ours)>);

impl Reports {
    /// Takes what the client reports of a partition.
    pub(super) fn take(&mut self, name: &Name, mut reported: Reported, state: &State) -> Finding {
        let partition = state.partitions.get(name);
        let paused = partition.is_some_and(|partition| partition.paused);
        let ours = partition.map(|partition| Ours {
            committed: partition.committed,
            next: partition.next(),
        });
        let ours = ours.unwrap_or_default();
        // While it need not move, it does not begin to be late.
        let idle = paused || !reported.could_move();
        let before = self.0.get(name);
        if let Some((before, _)) = before.filter(|_| !idle)
            && before.place() == reported.place()
        {
            reported.since = before.since;
        }
        let finding = before.map(|(before, then)| found((before, *then), (&reported, ours)));
        self.0.insert(name.clone(), (reported, ours));
        finding.unwrap_or_default()
    }

    pub(super) fn forget(&mut self, name: &Name) {
        self.0.remove(name);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// A partition that has more to read or whose reading has not begun, is not paused, and has not moved for longer than
    /// that.
    pub(super) fn stalled(&self, state: &State, timeout: Duration) -> Option<Name> {
        let mut read = state.partitions().filter(|(_, partition)| !partition.paused);
        let stalled = read.find(|(name, _)| {
            let reported = self.0.get(*name);
            reported.is_some_and(|(reported, _)| reported.could_move() && reported.since.elapsed() > timeout)
        });
        stalled.map(|(name, _)| name.clone())
    }

    /// How far each assigned partition is behind.
    pub(super) fn lags(&self, state: &State) -> Vec<PartitionLag> {
        let lags = state.partitions().filter_map(|(name, partition)| {
            let (reported, _) = self.0.get(name)?;
            let known = partition.to_commit().or(partition.committed);
            let finished = match partition.oldest() {
                Some(oldest) => oldest,
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

/// What two reports tell between which nothing was done. A single one may be older than what we did last.
fn found((before, then): (&Reported, Ours), (reported, ours): (&Reported, Ours)) -> Finding {
    let is_still = before.place() == reported.place() && then.next == ours.next;
    // What is fetched and not given out yet may be of what is lower.
    let is_empty = reported.is_begun && reported.queued == 0;
    let lower = |next: i64| is_empty && (0..next).contains(&reported.next_offset);
    Finding {
        is_uncommitted: ours.committed.is_some()
            && then.committed == ours.committed
            && ours.committed != Some(reported.committed_offset),
        went_back: (is_still && ours.next.is_some_and(lower)).then_some(reported.next_offset),
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::OwnedMessage;

    use super::super::options::SourceOptions;
    use super::super::shared::Shared;
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
                is_begun: true,
                since: Instant::now(),
            }
        }

        /// As of an assignment whose reading has not begun.
        fn before() -> Self {
            Self {
                app_offset: -1001,
                next_offset: 0,
                committed_offset: -1001,
                end: -1001,
                is_begun: false,
                ..Self::of(0, 0)
            }
        }
    }

    fn report(shared: &Shared, end: i64, app_offset: i64) {
        shared.report(&name(), Reported::of(end, app_offset));
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

    #[tokio::test]
    async fn a_commit_that_the_client_does_not_know_of_at_the_second_report_is_repeated() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        let commit = |offset| shared.state().partition_mut(&name()).unwrap().committed = Some(offset);
        let committed = || shared.state().partition_mut(&name()).unwrap().committed;
        let know = |committed_offset| {
            let reported = Reported::of(10, 10);
            shared.report(
                &name(),
                Reported {
                    committed_offset,
                    ..reported
                },
            );
        };

        commit(7);
        know(4);
        assert_eq!(committed(), Some(7), "it may be on its way");
        commit(8);
        know(4);
        assert_eq!(committed(), Some(8), "this one too");
        know(8);
        know(8);
        assert_eq!(committed(), Some(8));
        know(11);
        assert_eq!(committed(), None, "one from before was late");
        commit(8);
        know(11);
        assert_eq!(committed(), None, "it failed");
    }

    #[tokio::test]
    async fn where_the_client_went_back_to_is_committed_although_nothing_comes_from_there() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        for offset in 0..12 {
            let time = rdkafka::Timestamp::NotAvailable;
            shared.take(OwnedMessage::new(None, None, name().0, time, 0, offset, None));
        }
        {
            let mut state = shared.state();
            let partition = state.partition_mut(&name()).unwrap();
            (0..12).for_each(|position| partition.finish(position));
            partition.committed = Some(12);
        }
        let to_commit = || shared.state().partition_mut(&name()).unwrap().to_commit();
        let known = Reported {
            committed_offset: 12,
            ..Reported::of(10, 12)
        };

        shared.report(&name(), known);
        assert_eq!(to_commit(), None, "it may be from before the last record");
        shared.report(&name(), known);
        assert_eq!(to_commit(), Some(10));

        shared.state().partition_mut(&name()).unwrap().committed = Some(10);
        shared.report(&name(), known);
        assert_eq!(to_commit(), None, "once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_whose_reading_never_begins_is_stalled() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        shared.report(&name(), Reported::before());
        tokio::time::advance(shared.options.stall_timeout).await;
        shared.report(&name(), Reported::before());
        assert_eq!(shared.stalled(), None);

        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(shared.stalled(), Some(name()));

        let empty = Reported {
            end: 0,
            is_begun: true,
            ..Reported::before()
        };
        shared.report(&name(), empty);
        tokio::time::advance(shared.options.stall_timeout * 2).await;
        assert_eq!(shared.stalled(), None, "there is nothing to read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_that_has_just_begun_has_its_time() {
        let shared = Shared::new(SourceOptions::default());
        shared.state().assign(name());
        shared.report(&name(), Reported::before());
        tokio::time::advance(shared.options.stall_timeout).await;

        let begun = Reported {
            end: 20,
            is_begun: true,
            ..Reported::before()
        };
        shared.report(&name(), begun);
        tokio::time::advance(Duration::from_secs(1)).await;

        assert_eq!(shared.stalled(), None);
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
        shared.report(&name(), busy);

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
