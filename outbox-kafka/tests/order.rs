//! Order and durability under faults, on the model broker: nothing completed that is not on the topic, and the first
//! occurrences of a key in publish order. The obvious dispatcher is run beside ours, and has to fail.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use support::event::{Id, events, id};
use support::model_broker::{At, Fault, ModelBroker, code};
use support::relay::Pace;
use support::scene::{MS, PARTITIONS, Run, guarded, naive, options, run};

/// Runs 2,000 events of 20 keys with these faults by our dispatcher, for requests of one record and of many.
async fn sound(what: &str, faults: &[(At, Fault, usize)], dead: &[Id]) -> Vec<Run> {
    let mut runs = Vec::new();
    for batch_bytes in [1, 10_000] {
        let broker = ModelBroker::start(PARTITIONS, MS(2)).await;
        faults
            .iter()
            .for_each(|(at, fault, times)| broker.arm(*at, *fault, *times));
        let dispatcher = guarded(&broker, options().with_batch_bytes_max(batch_bytes));
        let run = run(&broker, &[dispatcher], &events(2000, 20), Pace::default()).await;
        println!("{what}, batches of {batch_bytes} bytes: {run:?}");
        run.assert_sound(what, dead);
        assert!(run.fired > 0 || faults.is_empty(), "{what}: no fault fired");
        runs.push(run);
    }
    runs
}

const MIDDLE_ID: Id = id(3, 60);
const MIDDLE: At = At::Event(MIDDLE_ID);

/// A fault for the first request of a producer on each partition.
fn at_the_first(fault: Fault) -> Vec<(At, Fault, usize)> {
    (0..PARTITIONS as i32)
        .map(|partition| (At::FirstOn(partition), fault, 1))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_faults_every_event_is_on_the_topic_once() {
    for run in sound("no fault", &[], &[]).await {
        assert_eq!(run.verdict.duplicates, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_that_does_not_last_costs_nothing() {
    for refusal in [
        code::MESSAGE_TOO_LARGE,
        code::INVALID_RECORD,
        code::UNKNOWN_SERVER_ERROR,
    ] {
        let runs = sound("refused once", &[(MIDDLE, Fault::Refuse(refusal), 1)], &[]).await;
        assert!(runs.iter().all(|run| run.attempts == 0), "{runs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_is_always_refused_is_dead_alone_and_at_once() {
    let refused = [(MIDDLE, Fault::Refuse(code::MESSAGE_TOO_LARGE), 1000)];

    for run in sound("always refused", &refused, &[MIDDLE_ID]).await {
        assert_eq!(run.attempts, 0);
        assert_eq!(run.fired, 2, "once with others, once alone");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_nobody_can_place_costs_attempts_of_its_record_alone() {
    let failing = [(MIDDLE, Fault::Refuse(code::UNKNOWN_SERVER_ERROR), 1000)];

    for run in sound("server error for ever", &failing, &[MIDDLE_ID]).await {
        assert_eq!(run.attempts, 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_a_producers_first_record_leaves_no_gap() {
    for refusal in [
        code::MESSAGE_TOO_LARGE,
        code::UNKNOWN_SERVER_ERROR,
        code::NOT_ENOUGH_REPLICAS,
    ] {
        sound("first of a partition", &at_the_first(Fault::Refuse(refusal)), &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_by_itself_is_waited_for() {
    for fault in [
        Fault::Refuse(code::NOT_ENOUGH_REPLICAS),
        Fault::Refuse(code::NOT_LEADER),
        Fault::Refuse(code::REQUEST_TIMED_OUT),
        Fault::LoseAnswer,
    ] {
        let runs = sound("passes by itself", &[(MIDDLE, fault, 2)], &[]).await;
        assert!(runs.iter().all(|run| run.attempts == 0), "{runs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_sits_on_a_request_past_the_deadline_does_no_harm() {
    for fault in [Fault::Hold(MS(2500)), Fault::Hold(MS(6000))] {
        let runs = sound("held", &[(MIDDLE, fault, 1)], &[]).await;
        assert!(runs.iter().all(|run| run.attempts == 0), "{runs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_down_costs_no_attempt() {
    for down in [1600, 6000] {
        let runs = sound("down", &[(MIDDLE, Fault::Down(MS(down)), 1)], &[]).await;
        assert!(runs.iter().all(|run| run.attempts == 0), "{runs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_local_queue_is_back_pressure() {
    let broker = ModelBroker::start(PARTITIONS, MS(2)).await;
    let dispatcher = guarded(&broker, options().with_queue_messages_max(20));

    let run = run(&broker, &[dispatcher], &events(2000, 20), Pace::default()).await;

    run.assert_sound("queue of 20", &[]);
    assert_eq!((run.attempts, run.verdict.duplicates), (0, 0), "{run:?}");
}

/// What the obvious dispatcher makes of the same faults, over a few runs: inversions and losses together.
async fn broken(faults: &[(At, Fault, usize)]) -> usize {
    let mut harm = 0;
    for batch_bytes in [1, 10_000] {
        let broker = ModelBroker::start(PARTITIONS, MS(2)).await;
        faults
            .iter()
            .for_each(|(at, fault, times)| broker.arm(*at, *fault, *times));
        let dispatcher = naive(&broker, batch_bytes);
        let run = run(&broker, &[dispatcher], &events(2000, 20), Pace::default()).await;
        println!("naive, batches of {batch_bytes} bytes: {run:?}");
        harm += run.verdict.inversions + run.verdict.lost;
    }
    harm
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_obvious_dispatcher_inverts_keys_and_loses_events() {
    let refused = broken(&[(MIDDLE, Fault::Refuse(code::UNKNOWN_SERVER_ERROR), 1)]).await;
    let unwritten = broken(&at_the_first(Fault::Refuse(code::NOT_ENOUGH_REPLICAS))).await;

    assert!(refused > 0, "a refused batch inverts nothing any more");
    assert!(
        unwritten > 0,
        "a refused first batch is not taken for acknowledged any more"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_are_lost_cost_duplicates_but_no_order() {
    for (lease, delivery) in [(6000, 1500), (700, 4000)] {
        let broker = ModelBroker::start(3, MS(1)).await;
        for n in [30, 70, 110] {
            broker.arm(At::Event(id(n % 12, u64::from(n))), Fault::Hold(MS(2500)), 1);
        }
        for n in [50, 90] {
            broker.arm(
                At::Event(id(n % 12, u64::from(n))),
                Fault::Refuse(code::UNKNOWN_SERVER_ERROR),
                1,
            );
        }
        let options = options()
            .with_delivery_timeout(MS(delivery))
            .with_batch_bytes_max(2000);
        let dispatchers = [guarded(&broker, options), guarded(&broker, options)];
        let pace = Pace {
            concurrency: 200,
            lease: MS(lease),
            ..Pace::default()
        };

        let run = run(&broker, &dispatchers, &events(2400, 12), pace).await;

        println!("lease {lease} ms, delivery {delivery} ms: {run:?}");
        run.assert_sound("two relays", &[]);
        assert!(lease > 1000 || run.taken_back > 0, "no lease was lost");
    }
}
