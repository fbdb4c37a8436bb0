use std::collections::HashMap;

use proptest::prelude::{ProptestConfig, any, prop, proptest};

use super::*;

fn lane_of(pipeline: &mut Pipeline, partition: i32) -> LaneId {
    pipeline.lane(&(TopicName::new("t").unwrap(), partition), Instant::now())
}

fn offered(pipeline: &mut Pipeline, now: Instant) -> Vec<(JobId, usize)> {
    tickets(pipeline, now)
        .iter()
        .map(|ticket| (ticket.job, ticket.index))
        .collect()
}

fn tickets(pipeline: &mut Pipeline, now: Instant) -> Vec<Ticket> {
    let mut tickets = Vec::new();
    pipeline.offer(now, |ticket| {
        tickets.push(ticket);
        true
    });
    tickets
}

#[test]
fn a_lane_begins_with_a_lone_record_and_again_after_a_rest() {
    let (mut pipeline, now) = (Pipeline::default(), Instant::now());
    let lane = lane_of(&mut pipeline, 0);
    pipeline.admit(1, [lane; 3].into(), 0);

    let first = tickets(&mut pipeline, now);
    assert_eq!(first.len(), 1);
    assert_eq!(offered(&mut pipeline, now), []);
    assert_eq!(pipeline.acknowledged(first[0], now), Progress::Nothing);
    let rest = tickets(&mut pipeline, now);
    assert_eq!(rest.len(), 2);
    pipeline.acknowledged(rest[0], now);
    assert_eq!(pipeline.acknowledged(rest[1], now), Progress::Finished(1));

    pipeline.admit(2, [lane; 2].into(), 0);
    assert_eq!(offered(&mut pipeline, now + REST_MAX), [(2, 0)]);
}

#[test]
fn after_a_failure_nothing_is_sent_until_the_restart_and_then_from_the_first_gap() {
    let (mut pipeline, now) = (Pipeline::default(), Instant::now());
    let lane = lane_of(&mut pipeline, 0);
    pipeline.admit(1, [lane; 4].into(), 0);
    let first = tickets(&mut pipeline, now);
    pipeline.acknowledged(first[0], now);
    let rest = tickets(&mut pipeline, now);

    pipeline.failed(rest[0], now);
    pipeline.acknowledged(rest[1], now);
    pipeline.admit(2, [lane].into(), 0);
    assert_eq!(offered(&mut pipeline, now), []);

    assert_eq!(pipeline.restart(), []);
    let again = tickets(&mut pipeline, now);
    assert_eq!((again[0].job, again[0].index), (1, 1));
    // A report of the instance that is gone says nothing.
    assert_eq!(pipeline.acknowledged(rest[2], now), Progress::Nothing);
    pipeline.acknowledged(again[0], now);
    assert_eq!(offered(&mut pipeline, now), [(1, 2), (1, 3), (2, 0)]);
}

#[test]
fn a_suspect_leaves_the_pipeline_with_what_comes_before_it() {
    let (mut pipeline, now) = (Pipeline::default(), Instant::now());
    let lane = lane_of(&mut pipeline, 0);
    pipeline.admit(1, [lane; 4].into(), 1);
    let first = tickets(&mut pipeline, now);
    pipeline.acknowledged(first[0], now);
    let rest = tickets(&mut pipeline, now);

    pipeline.failed(rest[1], now);
    pipeline.suspect(rest[1]);

    assert_eq!(pipeline.restart(), [(1, 2, 3)]);
    assert_eq!(offered(&mut pipeline, now), []);
}

#[test]
fn a_run_over_several_lanes_goes_one_stretch_after_the_other() {
    let (mut pipeline, now) = (Pipeline::default(), Instant::now());
    let lanes = [0, 1].map(|partition| lane_of(&mut pipeline, partition));
    pipeline.admit(1, [lanes[0], lanes[1], lanes[0]].into(), 0);

    for index in 0..3 {
        let offered = tickets(&mut pipeline, now);
        assert_eq!(
            offered.iter().map(|ticket| ticket.index).collect::<Vec<_>>(),
            [index]
        );
        pipeline.acknowledged(offered[0], now);
    }
    assert_eq!(pipeline.in_flight(), 0);
}

#[test]
fn a_full_queue_offers_the_same_record_again() {
    let (mut pipeline, now) = (Pipeline::default(), Instant::now());
    let lane = lane_of(&mut pipeline, 0);
    pipeline.admit(1, [lane; 2].into(), 0);

    pipeline.offer(now, |_| false);

    assert_eq!(pipeline.in_flight(), 0);
    assert_eq!(offered(&mut pipeline, now), [(1, 0)]);
}

#[test]
fn silence_is_counted_from_the_last_word_on_a_lane_that_waits_for_one() {
    let (mut pipeline, now) = (Pipeline::default(), Instant::now());
    let lane = lane_of(&mut pipeline, 0);
    let later = now + Duration::from_secs(5);
    assert_eq!(pipeline.silence(later), Duration::ZERO);

    pipeline.admit(1, [lane; 2].into(), 0);
    let first = tickets(&mut pipeline, now);
    assert_eq!(pipeline.silence(later), Duration::from_secs(5));
    pipeline.acknowledged(first[0], later);
    assert_eq!(pipeline.silence(later + Duration::from_secs(9)), Duration::ZERO);
}

#[derive(Debug, Clone)]
enum Happening {
    Admit {
        lane: u8,
        records: u8,
    },
    Offer,
    /// The oldest record under way is acknowledged.
    Acknowledge,
    Fail,
    CallOff(u8),
    Restart,
}

fn happening() -> impl proptest::strategy::Strategy<Value = Happening> {
    use proptest::prelude::Strategy;
    prop::sample::select(vec![0_u8, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 4, 5])
        .prop_flat_map(|kind| (proptest::prelude::Just(kind), any::<u8>(), 1..6_u8))
        .prop_map(|(kind, number, records)| match kind {
            0 => Happening::Admit {
                lane: number % 3,
                records,
            },
            1 => Happening::Offer,
            2 => Happening::Acknowledge,
            3 => Happening::Fail,
            4 => Happening::CallOff(number),
            _ => Happening::Restart,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// What one instance gets of a job is one piece, beginning at the first record that was not acknowledged when the
    /// instance took over: that is what the order rests on.
    #[test]
    fn what_an_instance_gets_of_a_job_has_no_gap(happenings in prop::collection::vec(happening(), 1..200)) {
        let (mut pipeline, now) = (Pipeline::default(), Instant::now());
        let lanes = [0, 1, 2].map(|partition| lane_of(&mut pipeline, partition));
        let mut under_way = VecDeque::new();
        // Per job: where this instance has to begin or go on, and the acknowledged prefix.
        let (mut expected, mut prefix) = (HashMap::<JobId, usize>::new(), HashMap::<JobId, usize>::new());
        let (mut next_job, mut failed) = (0, false);
        for happening in happenings {
            match happening {
                Happening::Admit { lane, records } => {
                    next_job += 1;
                    let lanes = vec![lanes[usize::from(lane)]; usize::from(records)];
                    pipeline.admit(next_job, lanes.into(), 0);
                    expected.insert(next_job, 0);
                    prefix.insert(next_job, 0);
                }
                Happening::Offer => {
                    for ticket in tickets(&mut pipeline, now) {
                        assert!(!failed, "sent after a failure");
                        let index = expected.get_mut(&ticket.job).unwrap();
                        assert_eq!(ticket.index, *index);
                        *index += 1;
                        under_way.push_back(ticket);
                    }
                }
                Happening::Acknowledge => {
                    let Some(ticket) = under_way.pop_front() else { continue };
                    *prefix.get_mut(&ticket.job).unwrap() += 1;
                    pipeline.acknowledged(ticket, now);
                }
                Happening::Fail => {
                    let Some(ticket) = under_way.pop_front() else { continue };
                    pipeline.failed(ticket, now);
                    failed = true;
                    // Gapless: nothing of this instance is acknowledged any more.
                    under_way.drain(..).for_each(|ticket| pipeline.failed(ticket, now));
                }
                Happening::CallOff(number) => {
                    let job = u64::from(number) % (next_job + 1);
                    pipeline.remove(job);
                }
                Happening::Restart => {
                    assert!(pipeline.restart().is_empty());
                    under_way.clear();
                    failed = false;
                    expected.clone_from(&prefix);
                }
            }
            assert_eq!(pipeline.in_flight(), under_way.len());
        }
    }
}
