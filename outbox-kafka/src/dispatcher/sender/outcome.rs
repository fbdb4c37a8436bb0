//! What jobs are answered.

use outbox_core::{Failure, FailureKind};
use tokio::time::Instant;

use super::{COLLECT_MAX, Phase, Sender};
use crate::dispatcher::careful::Step;
use crate::dispatcher::instance::{Instance, Report};
use crate::dispatcher::job::{JobId, called_off, late, outage, refused};
use crate::dispatcher::pipeline::Progress;
use crate::dispatcher::verdict::{Fault, fault};

impl Sender {
    /// Answers a job whose records are all acknowledged.
    pub(super) fn progress(&mut self, progress: Progress) {
        let Progress::Finished(id) = progress else { return };
        if let Some(mut hand) = self.hands.remove(&id) {
            let (delivered, failure) = (hand.request.records.len(), hand.request.failure.take());
            hand.request.answer(delivered, failure);
        }
    }

    pub(super) fn answer(&mut self, id: JobId, delivered: usize, failure: Failure) {
        if let Some(hand) = self.hands.remove(&id) {
            hand.request.answer(delivered, Some(failure));
        }
    }

    /// Takes what the careful producer says about a record.
    pub(super) fn careful_report(&mut self, report: &Report, now: Instant) {
        let code = match report.result {
            Ok(()) => {
                if let Step::Through(id, done) = self.careful.acknowledged(report.ticket) {
                    self.resume(id, done);
                }
                return;
            }
            Err(code) => code,
        };
        if fault(code) == Fault::Topic {
            self.forget_topic(report.ticket);
        }
        let Some(suspect) = self.careful.failed(report.ticket) else {
            return;
        };
        let hand = self.hands.get(&suspect.job);
        let topic = hand.and_then(|hand| hand.topic(suspect.next));
        let failure = match fault(code) {
            Fault::Refused => refused(FailureKind::Reject, topic, code),
            Fault::Doubtful | Fault::Topic => refused(FailureKind::Retry, topic, code),
            Fault::Transport => {
                self.last_error = Some(code);
                self.is_down(now);
                outage(self.outage_reason())
            }
        };
        self.answer(suspect.job, suspect.next, failure);
    }

    /// A job's suspects are through: the rest goes by the pipeline.
    fn resume(&mut self, id: JobId, done: usize) {
        let Some(hand) = self.hands.get(&id) else { return };
        if done == hand.lanes.len() {
            self.progress(Progress::Finished(id));
        } else {
            self.pipeline.admit(id, hand.lanes.clone(), done);
        }
    }

    /// Answers jobs that nobody waits for any more, and those whose time is up.
    pub(super) fn sweep(&mut self, now: Instant) {
        let off = self.hands.iter().filter(|(_, hand)| hand.request.is_called_off());
        for id in off.map(|(id, _)| *id).collect::<Vec<_>>() {
            let delivered = self.take_off(id);
            self.answer(id, delivered, called_off());
        }
        self.give_up_silent(now);
        self.doubt_topics(now);
        let due = self.hands.iter().filter(|(_, hand)| hand.request.deadline <= now);
        for id in due.map(|(id, _)| *id).collect::<Vec<JobId>>() {
            let delivered = self.take_off(id);
            let topic = self.hands.get(&id).and_then(|hand| hand.topic(delivered));
            let failure = late(
                topic.and_then(|topic| self.topics.trouble(topic)),
                &self.outage_reason(),
            );
            if failure.kind == FailureKind::Outage {
                self.is_down(now);
            }
            self.answer(id, delivered, failure);
        }
    }

    /// Asks about the topics of jobs that take long.
    fn doubt_topics(&mut self, now: Instant) {
        let timeout = self.config.delivery_timeout;
        let slow = self
            .hands
            .values()
            .filter(|hand| hand.request.is_slow(timeout, now));
        for record in slow.flat_map(|hand| &hand.request.records) {
            self.topics.doubt(&record.topic, now);
        }
    }

    /// Gives an instance up of which nothing is heard: nothing more may leave, what is queued is taken back.
    ///
    /// Not before it had the time of a whole delivery: a deadline alone says nothing of an instance that has only just
    /// taken over, and one that is given up each time a deadline passes would never come to deliver anything.
    fn give_up_silent(&mut self, now: Instant) {
        let in_use = matches!(self.phase, Phase::Open | Phase::Draining);
        if !in_use || self.pipeline.silence(now) < self.config.delivery_timeout {
            return;
        }
        self.pipeline.halt();
        self.phase = Phase::Collecting {
            until: now + COLLECT_MAX,
            purged: false,
        };
    }

    /// Takes a job off wherever it is, and says how many of its records are acknowledged.
    fn take_off(&mut self, id: JobId) -> usize {
        self.asking.retain(|asking| *asking != id);
        match self.careful.remove(id) {
            Some((delivered, under_way)) => {
                if under_way && let Some(instance) = self.careful_instance.take() {
                    Instance::discard(instance);
                }
                delivered
            }
            None => self.pipeline.remove(id),
        }
    }

    pub(super) fn outage_reason(&self) -> String {
        match self.last_error {
            Some(code) => format!("kafka did not acknowledge in time; the last error was: {code}"),
            None => "kafka did not acknowledge in time".to_owned(),
        }
    }
}
