//! Which records go into the next transaction, and what its end means for them. Pure.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use outbox_core::{Failure, FailureKind};
use rdkafka::error::RDKafkaErrorCode as Code;
use tokio::time::Instant;

use crate::dispatcher::job::{JobId, Request, called_off, outage, refused};
use crate::dispatcher::verdict::{Fault, fault};
use crate::{OutgoingRecord, TopicName};

/// The most records of a transaction.
pub(super) const RECORDS_MAX: usize = 1_000;
/// A transaction is closed to further records at so many bytes: its records have to be written in the time of one.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// A run that waits for its records to be committed.
#[derive(Debug)]
struct Job {
    request: Request,
    /// The partition of each record; empty until all are known.
    partitions: Vec<i32>,
    /// How many of its records are committed.
    done: usize,
    /// Records before this one go alone: the broker objected to one of them, or to a neighbour of theirs.
    alone_until: usize,
}

/// One record of a transaction: of which job, and which of its records.
pub(super) type Part = (JobId, usize);

/// The runs that wait, oldest first.
#[derive(Debug)]
pub(super) struct Queue {
    jobs: BTreeMap<JobId, Job>,
    last: JobId,
    /// The most records of a transaction.
    records_max: usize,
    /// Topics that go alone.
    suspects: BTreeSet<TopicName>,
}

impl Queue {
    /// A queue for a client that takes so many records at once.
    pub(super) fn new(client_takes: usize) -> Self {
        let no_limit = client_takes == 0;
        Self {
            jobs: BTreeMap::new(),
            last: 0,
            suspects: BTreeSet::new(),
            records_max: if no_limit {
                RECORDS_MAX
            } else {
                client_takes.min(RECORDS_MAX)
            },
        }
    }

    pub(super) fn push(&mut self, request: Request) {
        self.last += 1;
        let job = Job {
            request,
            partitions: Vec::new(),
            done: 0,
            alone_until: 0,
        };
        self.jobs.insert(self.last, job);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Jobs whose partitions are not known yet.
    pub(super) fn unplaced(&self) -> Vec<JobId> {
        let unplaced = self.jobs.iter().filter(|(_, job)| job.partitions.is_empty());
        unplaced.map(|(id, _)| *id).collect()
    }

    pub(super) fn records(&self, id: JobId) -> &[OutgoingRecord] {
        self.jobs.get(&id).map_or(&[], |job| &job.request.records)
    }

    /// The record of a part, and its partition; `None` when nobody waits for it any more.
    pub(super) fn record(&self, (id, index): Part) -> Option<(&OutgoingRecord, i32)> {
        let job = self.jobs.get(&id)?;
        Some((job.request.records.get(index)?, *job.partitions.get(index)?))
    }

    /// The topics that parts go to.
    pub(super) fn topics(&self, parts: &[Part]) -> HashSet<TopicName> {
        let records = parts.iter().filter_map(|part| self.record(*part));
        records.map(|(record, _)| record.topic.clone()).collect()
    }

    /// Says where the records of a job go. Fewer partitions than records: the run ends before the first one without,
    /// with that failure.
    pub(super) fn place(&mut self, id: JobId, partitions: Vec<i32>, cut: Option<Failure>) {
        let Some(mut job) = self.jobs.remove(&id) else {
            return;
        };
        if let Some(failure) = cut {
            job.request.records.truncate(partitions.len());
            job.request.failure = Some(failure);
        }
        job.partitions = partitions;
        self.keep_or_answer(id, job);
    }

    /// The records of the next transaction; none if no run is ready.
    pub(super) fn next(&self) -> Vec<Part> {
        let ready = self.jobs.iter().filter(|(_, job)| !job.partitions.is_empty());
        if let Some((id, job)) = ready.clone().find(|(_, job)| job.done < job.alone_until) {
            return vec![(*id, job.done)];
        }
        let suspects = self.suspects.iter().map(Some);
        let mut choices = suspects
            .chain([None])
            .map(|suspect| self.fitting(ready.clone(), suspect));
        choices.find(|parts| !parts.is_empty()).unwrap_or_default()
    }

    /// The first records of these runs for a topic that goes alone, or for any that does not, as many as fit.
    fn fitting<'a>(
        &'a self,
        runs: impl Iterator<Item = (&'a JobId, &'a Job)>,
        suspect: Option<&'a TopicName>,
    ) -> Vec<Part> {
        let waiting = runs.flat_map(move |(id, job)| {
            let records = job.request.records.iter().enumerate().skip(job.done);
            let of_topic = records.take_while(move |(_, record)| match suspect {
                Some(topic) => record.topic == *topic,
                None => !self.suspects.contains(&record.topic),
            });
            of_topic.map(|(index, record)| ((*id, index), record.size()))
        });
        let mut bytes = 0;
        let fitting = waiting.take_while(|(_, size)| {
            let first = bytes == 0;
            bytes += size;
            first || bytes <= BYTES_MAX
        });
        fitting.take(self.records_max).map(|(part, _)| part).collect()
    }

    /// One of these topics is in trouble: each goes alone, until a transaction with it is committed.
    pub(super) fn suspect(&mut self, topics: HashSet<TopicName>) {
        self.suspects.extend(topics);
    }

    /// The transaction is committed.
    pub(super) fn committed(&mut self, parts: &[Part]) {
        if !self.suspects.is_empty() {
            let fine = self.topics(parts);
            self.suspects.retain(|topic| !fine.contains(topic));
        }
        for (id, index) in parts {
            if let Some(mut job) = self.jobs.remove(id) {
                job.done = index + 1;
                self.keep_or_answer(*id, job);
            }
        }
    }

    /// The transaction was taken back because of these records. One that was alone is charged; of several, those that
    /// the broker objected to are tried alone, and the others again.
    pub(super) fn taken_back(&mut self, parts: &[Part], failures: &[(Part, Code)]) {
        let objections = || {
            failures
                .iter()
                .filter(|(_, code)| fault(*code) != Fault::Transport)
        };
        if objections().next().is_none() {
            // A record may be purged by the end of the transaction before its own; it goes again.
            let purged = |code: &Code| matches!(code, Code::PurgeQueue | Code::PurgeInflight);
            if let Some((_, why)) = failures.iter().find(|(_, code)| !purged(code)) {
                self.outage(parts, &why.to_string());
            }
            return;
        }
        if let ([part], Some((_, code))) = (parts, objections().next()) {
            let kind = match fault(*code) {
                Fault::Refused => FailureKind::Reject,
                Fault::Doubtful | Fault::Topic | Fault::Transport => FailureKind::Retry,
            };
            let topic = self.record(*part).map(|(record, _)| &record.topic);
            let failure = refused(kind, topic, *code);
            return self.answer(part.0, failure);
        }
        let parts: Vec<Part> = objections().map(|(part, _)| *part).collect();
        parts.into_iter().for_each(|part| self.alone(part));
    }

    /// A record goes alone, and those of its run before it.
    pub(super) fn alone(&mut self, (id, index): Part) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.alone_until = job.alone_until.max(index + 1);
        }
    }

    /// Nobody knows, or nobody is to blame: nothing is charged.
    pub(super) fn outage(&mut self, parts: &[Part], why: &str) {
        for (id, _) in parts {
            self.answer(*id, outage(why));
        }
    }

    /// Answers those whose time is up, by what is said of the record that is next, and forgets those for whom nobody
    /// waits.
    pub(super) fn sweep(&mut self, now: Instant, late: impl Fn(&OutgoingRecord) -> Failure) {
        let over = |job: &Job| job.request.is_called_off() || job.request.deadline <= now;
        let over = self.jobs.iter().filter(|(_, job)| over(job)).map(|(id, job)| {
            let next = job.request.records.get(job.done);
            let failure = next.filter(|_| !job.request.is_called_off()).map(&late);
            (*id, failure.unwrap_or_else(called_off))
        });
        for (id, failure) in over.collect::<Vec<_>>() {
            self.answer(id, failure);
        }
    }

    /// The records of runs that take long for what a delivery may take.
    pub(super) fn slow(&self, timeout: Duration, now: Instant) -> impl Iterator<Item = &OutgoingRecord> {
        let slow = self
            .jobs
            .values()
            .filter(move |job| job.request.is_slow(timeout, now));
        slow.flat_map(|job| job.request.records.iter().skip(job.done))
    }

    /// Ends runs before the first record for which there is a trouble.
    pub(super) fn cut(&mut self, trouble: impl Fn(&OutgoingRecord) -> Option<Failure>) {
        let placed = self.jobs.iter().filter(|(_, job)| !job.partitions.is_empty());
        let cuts = placed.filter_map(|(id, job)| {
            let waiting = job.partitions.len().min(job.request.records.len());
            let mut waiting = (job.done..waiting).zip(job.request.records.get(job.done..)?);
            waiting.find_map(|(index, record)| Some((*id, index, trouble(record)?)))
        });
        for (id, index, failure) in cuts.collect::<Vec<_>>() {
            if let Some(mut job) = self.jobs.remove(&id) {
                job.request.records.truncate(index);
                job.partitions.truncate(index);
                job.request.failure = Some(failure);
                self.keep_or_answer(id, job);
            }
        }
    }

    fn answer(&mut self, id: JobId, failure: Failure) {
        if let Some(job) = self.jobs.remove(&id) {
            job.request.answer(job.done, Some(failure));
        }
    }

    fn keep_or_answer(&mut self, id: JobId, mut job: Job) {
        if job.done < job.request.records.len() {
            self.jobs.insert(id, job);
        } else {
            let failure = job.request.failure.take();
            job.request.answer(job.done, failure);
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
