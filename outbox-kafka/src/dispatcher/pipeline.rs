//! What is sent when: the guarded pipeline. Pure: it knows neither the client nor the clock.
//!
//! # Overview
//! A *job* is a run of records of one key. Its records wait in *lanes*, one per partition. One producer instance at a
//! time serves all lanes. Once a record fails, whoever's fault, nothing more is sent; every verdict that can still
//! come is collected; and a new *generation* begins with a new instance, in which each job starts again at its first
//! record that was not acknowledged.
//!
//! ```text
//!   admit ─▶ lane: cold ──first record alone──▶ probing ──acknowledged──▶ warm, as many as the client takes
//!              ▲                                    │                       │
//!              └──────── restart (new instance) ◀───┴──── any failure ◀─────┘
//! ```
//!
//! # Why a lane begins with a lone record
//! A broker that knows nothing of a producer on a partition takes any sequence number. If the first batch were
//! refused while a second is on its way, the second would be written: a gap in a key, and the client would even take
//! the first for acknowledged. With nothing behind it the first cannot leave a gap. Brokers forget producers that are
//! long silent, so a lane that has rested is cold again.
//!
//! # Invariant
//! What one instance writes for a key begins at or before the key's first uncompleted event and has no gaps. Any merge
//! of such runs keeps the order of first occurrences, whatever leases were lost and whatever is written late.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::job::JobId;
use crate::TopicName;

/// A lane that rested so long begins again with a lone record. Brokers remember producers for a day by default, and
/// few are set to less than an hour.
const REST_MAX: Duration = Duration::from_secs(15 * 60);

/// A topic's partition.
pub(super) type LaneName = (TopicName, i32);

/// Which lane; stays the same over generations.
pub(super) type LaneId = usize;

/// A record under way: which it is, and for which instance it was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) generation: u64,
    pub(super) job: JobId,
    pub(super) index: usize,
    pub(super) lane: LaneId,
}

/// What an acknowledgement means for its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Every record of the job is acknowledged.
    Finished(JobId),
    /// Others are still missing, or nobody waits for it.
    Nothing,
}

#[derive(Debug)]
struct Job {
    lanes: Arc<[LaneId]>,
    acknowledged: Vec<bool>,
    /// How many records from the start are acknowledged.
    prefix: usize,
    /// Where the records end that wait or are under way. A run over several lanes goes one stretch after the other:
    /// what comes behind a refused event must not be on another topic already.
    stretch_end: usize,
    /// The last record that is to go alone, because the broker refused a batch with it.
    suspect: Option<usize>,
}

impl Job {
    fn acknowledge(&mut self, index: usize) {
        self.acknowledged[index] = true;
        while self.acknowledged.get(self.prefix) == Some(&true) {
            self.prefix += 1;
        }
    }

    /// Goes back to the first record that is missing. What came behind a gap is sent again: an order is worth more
    /// than a duplicate.
    fn rewind(&mut self) {
        self.acknowledged[self.prefix..].fill(false);
        self.stretch_end = self.prefix;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Warmth {
    Cold,
    Probing,
    Warm(Instant),
}

#[derive(Debug)]
struct Lane {
    warmth: Warmth,
    waiting: VecDeque<(JobId, usize)>,
    /// How many of its records the instance has not reported on.
    in_flight: usize,
    /// When something last came of it, or since when something is awaited.
    progress: Instant,
}

impl Lane {
    fn sent(&mut self, now: Instant) {
        if self.in_flight == 0 {
            self.progress = now;
        }
        self.in_flight += 1;
        self.warmth = match self.warmth {
            Warmth::Warm(last) if now.duration_since(last) < REST_MAX => Warmth::Warm(now),
            _ => Warmth::Probing,
        };
    }

    fn reported(&mut self, now: Instant) {
        self.in_flight -= 1;
        self.progress = now;
    }
}

/// The guarded pipeline's state.
#[derive(Debug, Default)]
pub(super) struct Pipeline {
    generation: u64,
    jobs: BTreeMap<JobId, Job>,
    lanes: Vec<Lane>,
    names: HashMap<LaneName, LaneId>,
    in_flight: usize,
    failed: bool,
}

impl Pipeline {
    /// The generation for which tickets are written.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// How many records the instance has been given that it has not reported on.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The lane of a partition.
    pub(super) fn lane(&mut self, name: &LaneName, now: Instant) -> LaneId {
        if let Some(id) = self.names.get(name) {
            return *id;
        }
        self.names.insert(name.clone(), self.lanes.len());
        self.lanes.push(Lane {
            warmth: Warmth::Cold,
            waiting: VecDeque::new(),
            in_flight: 0,
            progress: now,
        });
        self.lanes.len() - 1
    }

    /// Takes a job: its records' lanes in order, the first `done` of which are acknowledged already.
    pub(super) fn admit(&mut self, id: JobId, lanes: Arc<[LaneId]>, done: usize) {
        let mut acknowledged = vec![false; lanes.len()];
        acknowledged[..done].fill(true);
        let job = Job {
            acknowledged,
            lanes,
            prefix: done,
            stretch_end: done,
            suspect: None,
        };
        self.jobs.insert(id, job);
        self.enqueue_stretch(id);
    }

    /// Puts the next records that share a lane into it.
    fn enqueue_stretch(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Some(lane) = job.lanes.get(job.stretch_end) else {
            return;
        };
        while job.lanes.get(job.stretch_end) == Some(lane) {
            self.lanes[*lane].waiting.push_back((id, job.stretch_end));
            job.stretch_end += 1;
        }
    }

    /// The records that may be sent now, lane by lane. `send` hands one over and says whether it was taken; when it
    /// was not, it is offered again with the next call.
    pub(super) fn offer(&mut self, now: Instant, mut send: impl FnMut(Ticket) -> bool) {
        let mut taken = 0;
        'lanes: for (id, lane) in self.lanes.iter_mut().enumerate() {
            loop {
                if self.failed || lane.warmth == Warmth::Probing {
                    continue 'lanes;
                }
                // A job that was called off leaves its records in the lanes.
                let jobs = &self.jobs;
                while lane
                    .waiting
                    .front()
                    .is_some_and(|(job, _)| !jobs.contains_key(job))
                {
                    lane.waiting.pop_front();
                }
                let Some((job, index)) = lane.waiting.front().copied() else {
                    continue 'lanes;
                };
                let ticket = Ticket {
                    generation: self.generation,
                    job,
                    index,
                    lane: id,
                };
                if !send(ticket) {
                    break 'lanes;
                }
                taken += 1;
                lane.waiting.pop_front();
                lane.sent(now);
            }
        }
        self.in_flight += taken;
    }

    /// A record was written. Says nothing of instances that are gone: their records are sent again.
    pub(super) fn acknowledged(&mut self, ticket: Ticket, now: Instant) -> Progress {
        if ticket.generation != self.generation {
            return Progress::Nothing;
        }
        self.in_flight -= 1;
        self.lanes[ticket.lane].reported(now);
        self.lanes[ticket.lane].warmth = Warmth::Warm(now);
        let Some(job) = self.jobs.get_mut(&ticket.job) else {
            return Progress::Nothing;
        };
        job.acknowledge(ticket.index);
        if job.prefix == job.lanes.len() {
            self.jobs.remove(&ticket.job);
            return Progress::Finished(ticket.job);
        }
        if job.prefix == job.stretch_end {
            self.enqueue_stretch(ticket.job);
        }
        Progress::Nothing
    }

    /// A record was not written, or nobody knows: nothing more may be sent in this generation.
    pub(super) fn failed(&mut self, ticket: Ticket, now: Instant) {
        if ticket.generation == self.generation {
            self.in_flight -= 1;
            self.lanes[ticket.lane].reported(now);
            self.failed = true;
        }
    }

    /// The broker's own word about a batch with this record in it: the record has to go alone.
    pub(super) fn suspect(&mut self, ticket: Ticket) {
        if let Some(job) = self.jobs.get_mut(&ticket.job) {
            job.suspect = job.suspect.max(Some(ticket.index));
        }
    }

    /// For how long the quietest lane has had nothing come of what it sent.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let waiting = self.lanes.iter().filter(|lane| lane.in_flight > 0);
        waiting.map(|lane| now - lane.progress).max().unwrap_or_default()
    }

    /// Sends nothing more in this generation, although no record failed.
    pub(super) fn halt(&mut self) {
        self.failed = true;
    }

    /// Gives a job up, and says how many of its records from the start are acknowledged.
    ///
    /// Records of it that the instance already has stay there. That is harmless: a later job of the key starts at the
    /// first record that is not completed, and comes behind them. It costs duplicates, and memory until the lane has
    /// been silent for too long and the instance is given up.
    pub(super) fn remove(&mut self, id: JobId) -> usize {
        self.jobs.remove(&id).map_or(0, |job| job.prefix)
    }

    /// Begins the next generation and returns the jobs that have to take the careful lane first: the job, its first
    /// record that is not acknowledged, and its last suspect. They are out of the pipeline until admitted again.
    pub(super) fn restart(&mut self) -> Vec<(JobId, usize, usize)> {
        self.generation += 1;
        self.in_flight = 0;
        self.failed = false;
        for lane in &mut self.lanes {
            lane.warmth = Warmth::Cold;
            lane.waiting.clear();
            lane.in_flight = 0;
        }
        let mut careful = Vec::new();
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for id in jobs {
            let Some(job) = self.jobs.get_mut(&id) else {
                continue;
            };
            job.rewind();
            match job.suspect.take() {
                // A suspect may have been acknowledged after all, by a report that came late.
                Some(last) if last >= job.prefix => {
                    careful.push((id, job.prefix, last));
                    self.jobs.remove(&id);
                }
                _ => self.enqueue_stretch(id),
            }
        }
        careful
    }
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
