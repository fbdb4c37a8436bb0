//! Where the records of a job go, before any is sent.

use outbox_core::{Failure, FailureKind};
use tokio::time::Instant;

use super::{Hand, Phase, Sender};
use crate::dispatcher::careful::Suspect;
use crate::dispatcher::job::{JobId, Request};
use crate::dispatcher::topics::{BATCH_FRAME, Facts, Knowledge};
use crate::{OutgoingRecord, partition_of};

/// So many records without a key go to one partition before it is the next one's turn: they share requests.
const STICKY: u32 = 64;

impl Sender {
    /// Takes a job.
    pub(super) fn admit(&mut self, request: Request, now: Instant) {
        self.next_job += 1;
        let hand = Hand {
            request,
            lanes: [].into(),
            partitions: Vec::new(),
        };
        self.hands.insert(self.next_job, hand);
        self.place(self.next_job, now);
    }

    /// Places the jobs that wait for the cluster's answer.
    pub(super) fn place_again(&mut self, now: Instant) {
        for id in std::mem::take(&mut self.asking) {
            self.place(id, now);
        }
    }

    /// Finds the partition of each record. A record that cannot be sent ends the run before it; a record that its
    /// topic will probably refuse goes alone, and the broker has the word.
    fn place(&mut self, id: JobId, now: Instant) {
        let Some(mut hand) = self.hands.remove(&id) else {
            return;
        };
        hand.partitions.clear();
        let (mut lanes, mut suspect) = (Vec::new(), None);
        for index in 0..hand.request.records.len() {
            let record = &hand.request.records[index];
            let facts = match self.topics.about(&record.topic, now) {
                Knowledge::Known(facts) => facts,
                Knowledge::Asked => {
                    self.hands.insert(id, hand);
                    return self.asking.push(id);
                }
                Knowledge::Trouble(why) => {
                    cut(&mut hand.request, index, Failure::new(FailureKind::Retry, why));
                    break;
                }
            };
            let (size, most) = (record.size(), self.config.message_bytes_max);
            if size > most {
                let why = format!("the record has up to {size} bytes; message_bytes_max is {most}");
                cut(&mut hand.request, index, Failure::new(FailureKind::Reject, why));
                break;
            }
            if facts
                .message_bytes_max
                .is_some_and(|most| size + BATCH_FRAME > most)
            {
                suspect = Some(index);
            }
            self.fit_batches(facts);
            let partition = self.partition(&hand.request.records[index], facts);
            lanes.push(
                self.pipeline
                    .lane(&(hand.request.records[index].topic.clone(), partition), now),
            );
            hand.partitions.push(partition);
        }
        if lanes.is_empty() {
            let failure = hand.request.failure.take();
            return hand.request.answer(0, failure);
        }
        hand.lanes = lanes.into();
        match suspect {
            Some(last) => self.careful.push(Suspect {
                job: id,
                next: 0,
                last,
            }),
            None => self.pipeline.admit(id, hand.lanes.clone(), 0),
        }
        self.hands.insert(id, hand);
    }

    fn partition(&mut self, record: &OutgoingRecord, facts: Facts) -> i32 {
        let partition = match &record.key {
            Some(key) => partition_of(key.as_bytes(), facts.partitions),
            None => {
                self.unkeyed = self.unkeyed.wrapping_add(1);
                self.unkeyed / STICKY % facts.partitions
            }
        };
        i32::try_from(partition).unwrap_or(0)
    }

    /// A batch over the topic's limit is refused whole, so batches have to stay below the smallest limit.
    fn fit_batches(&mut self, facts: Facts) {
        let Some(most) = facts.batch_bytes_max() else {
            return;
        };
        if most >= self.batch_bytes_max {
            return;
        }
        self.batch_bytes_max = most;
        if let Some(spare) = self.spare.take() {
            spare.discard();
        }
        if self.phase == Phase::Open && self.instance.is_some() {
            self.phase = Phase::Draining;
        }
    }
}

/// Ends a run before the record at `index`.
fn cut(request: &mut Request, index: usize, failure: Failure) {
    request.records.truncate(index);
    request.failure = Some(failure);
}
