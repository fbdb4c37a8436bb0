//! What goes together, what goes alone, and who is charged.

use outbox_core::{Delivered, RunResult};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::dispatcher::job::Answer;

struct Run {
    answer: oneshot::Receiver<Answer>,
    cancelled: CancellationToken,
}

impl Run {
    /// `None` while there is no answer.
    fn kinds(&mut self) -> Option<Vec<Result<Delivered, FailureKind>>> {
        let results: RunResult = self.answer.try_recv().ok()?.into_result();
        Some(
            results
                .into_iter()
                .map(|result| result.map_err(|failure| failure.kind))
                .collect(),
        )
    }
}

fn record() -> OutgoingRecord {
    OutgoingRecord {
        topic: TopicName::new("t").unwrap(),
        key: Some("k".to_owned()),
        headers: Vec::new(),
        value: "{}".to_owned(),
        timestamp_ms: 0,
    }
}

/// A queue of placed runs with so many records each, and the id of the first.
fn queue(lengths: &[usize]) -> (Queue, Vec<Run>) {
    let mut queue = Queue::new(RECORDS_MAX);
    let mut runs = Vec::new();
    for length in lengths {
        let (reply, answer) = oneshot::channel();
        let cancelled = CancellationToken::new();
        queue.push(Request {
            records: (0..*length).map(|_| record()).collect(),
            failure: None,
            deadline: Instant::now() + Duration::from_secs(60),
            cancelled: cancelled.clone(),
            reply,
        });
        runs.push(Run { answer, cancelled });
        for id in queue.unplaced() {
            queue.place(id, vec![0; *length], None);
        }
    }
    (queue, runs)
}

const DONE: Result<Delivered, FailureKind> = Ok(Delivered::Handled);

#[tokio::test]
async fn runs_that_wait_go_together() {
    let (mut queue, mut runs) = queue(&[2, 1]);

    let parts = queue.next();
    queue.committed(&parts);

    assert_eq!(parts, [(1, 0), (1, 1), (2, 0)]);
    assert_eq!(runs[0].kinds().unwrap(), [DONE, DONE]);
    assert_eq!(runs[1].kinds().unwrap(), [DONE]);
    assert!(queue.is_empty());
}

#[tokio::test]
async fn a_transaction_ends_where_the_client_takes_no_more_and_the_next_one_goes_on_there() {
    let (mut queue, mut runs) = queue(&[3, 2]);
    queue.records_max = 2;

    for expected in [[(1, 0), (1, 1)], [(1, 2), (2, 0)]] {
        let parts = queue.next();
        assert_eq!(parts, expected);
        queue.committed(&parts);
    }

    assert_eq!(runs[0].kinds().unwrap(), [DONE, DONE, DONE]);
    assert_eq!((runs[1].kinds(), queue.next()), (None, vec![(2, 1)]));
}

#[tokio::test]
async fn a_transaction_takes_one_record_at_least_and_ends_at_its_bytes() {
    let (mut queue, _runs) = queue(&[4]);
    let sizes = [BYTES_MAX + 1, BYTES_MAX / 2, BYTES_MAX / 4, BYTES_MAX / 2];
    let job = queue.jobs.get_mut(&1).unwrap();
    for (record, size) in job.request.records.iter_mut().zip(sizes) {
        record.value = "x".repeat(size);
    }

    for expected in [vec![(1, 0)], vec![(1, 1), (1, 2)], vec![(1, 3)]] {
        let parts = queue.next();
        assert_eq!(parts, expected);
        queue.committed(&parts);
    }
}

#[tokio::test]
async fn a_record_that_is_objected_to_goes_alone_behind_those_before_it() {
    let (mut queue, mut runs) = queue(&[3, 1]);
    let all = queue.next();

    queue.taken_back(
        &all,
        &[((1, 1), Code::MessageSizeTooLarge), ((2, 0), Code::PurgeQueue)],
    );

    assert_eq!(queue.next(), [(1, 0)]);
    queue.committed(&[(1, 0)]);
    assert_eq!(queue.next(), [(1, 1)]);
    queue.taken_back(&[(1, 1)], &[((1, 1), Code::MessageSizeTooLarge)]);
    assert_eq!(runs[0].kinds().unwrap(), [DONE, Err(FailureKind::Reject)]);
    // The other run was only taken back.
    assert_eq!(queue.next(), [(2, 0)]);
    assert_eq!(runs[1].kinds(), None);
}

#[tokio::test]
async fn what_nobody_can_place_costs_its_record_an_attempt_when_it_is_alone() {
    let (mut queue, mut runs) = queue(&[1]);

    queue.taken_back(&[(1, 0)], &[((1, 0), Code::Unknown)]);

    assert_eq!(runs[0].kinds().unwrap(), [Err(FailureKind::Retry)]);
}

#[tokio::test]
async fn a_record_that_was_only_purged_goes_again() {
    let (mut queue, mut runs) = queue(&[1]);

    queue.taken_back(&[(1, 0)], &[((1, 0), Code::PurgeQueue)]);

    assert_eq!(queue.next(), [(1, 0)]);
    assert_eq!(runs[0].kinds(), None);
}

#[tokio::test]
async fn trouble_of_the_transport_charges_nobody() {
    let (mut queue, mut runs) = queue(&[2, 1]);
    let all = queue.next();

    queue.taken_back(&all, &[((1, 0), Code::MessageTimedOut)]);

    assert_eq!(runs[0].kinds().unwrap(), [Err(FailureKind::Outage)]);
    assert_eq!(runs[1].kinds().unwrap(), [Err(FailureKind::Outage)]);
}

#[tokio::test]
async fn a_run_is_answered_at_its_deadline_and_forgotten_when_it_is_called_off() {
    let (mut queue, mut runs) = queue(&[1, 1]);
    runs[0].cancelled.cancel();

    queue.sweep(Instant::now(), |_| outage("down"));
    assert_eq!(runs[0].kinds().unwrap(), [Err(FailureKind::NotTried)]);
    assert_eq!(runs[1].kinds(), None);

    queue.sweep(Instant::now() + Duration::from_secs(60), |_| outage("down"));
    assert_eq!(runs[1].kinds().unwrap(), [Err(FailureKind::Outage)]);
    assert!(queue.is_empty());
}

#[tokio::test]
async fn a_run_ends_before_the_record_that_has_no_place() {
    let (mut queue, mut runs) = queue(&[]);
    let (reply, answer) = oneshot::channel();
    queue.push(Request {
        records: vec![record(), record()],
        failure: None,
        deadline: Instant::now() + Duration::from_secs(60),
        cancelled: CancellationToken::new(),
        reply,
    });
    runs.push(Run {
        answer,
        cancelled: CancellationToken::new(),
    });

    queue.place(
        1,
        vec![0],
        Some(Failure::new(FailureKind::Retry, "no such topic")),
    );
    assert_eq!(queue.next(), [(1, 0)]);
    queue.committed(&[(1, 0)]);

    assert_eq!(runs[0].kinds().unwrap(), [DONE, Err(FailureKind::Retry)]);
}

#[tokio::test]
async fn a_topic_in_trouble_ends_the_runs_before_its_first_record_and_no_others() {
    let (mut queue, mut runs) = queue(&[3, 1, 2]);
    let gone = TopicName::new("gone").unwrap();
    queue.jobs.get_mut(&1).unwrap().request.records[1].topic = gone.clone();
    queue.jobs.get_mut(&2).unwrap().request.records[0].topic = gone.clone();

    queue.cut(|record| (record.topic == gone).then(|| Failure::new(FailureKind::Retry, "gone")));

    assert_eq!(runs[1].kinds().unwrap(), [Err(FailureKind::Retry)]);
    let parts = queue.next();
    assert_eq!(parts, [(1, 0), (3, 0), (3, 1)]);
    queue.committed(&parts);
    assert_eq!(runs[0].kinds().unwrap(), [DONE, Err(FailureKind::Retry)]);
    assert_eq!(runs[2].kinds().unwrap(), [DONE, DONE]);
}

#[tokio::test]
async fn a_suspected_topic_goes_alone_until_it_is_committed() {
    let (mut queue, _runs) = queue(&[2, 1, 1]);
    let doubtful = TopicName::new("doubtful").unwrap();
    queue.jobs.get_mut(&1).unwrap().request.records[1].topic = doubtful.clone();
    queue.jobs.get_mut(&2).unwrap().request.records[0].topic = doubtful.clone();

    queue.suspect([doubtful].into());

    for expected in [vec![(2, 0)], vec![(1, 0), (1, 1), (3, 0)]] {
        let parts = queue.next();
        assert_eq!(parts, expected);
        queue.committed(&parts);
    }
}
