//! Random histories of a partition, against what must hold whatever happens.

use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};

use super::super::letters::{Delivery, Form, Letter, UNDER_WAY_MAX};
use super::world::{Step, World, name};
use super::*;

fn step() -> impl Strategy<Value = Step> {
    let keys = prop::collection::vec(0_u8..4, 1..6);
    let small = any::<usize>();
    prop_oneof![
        4 => (0_i64..3, keys).prop_map(|(gap, keys)| Step::Arrive { gap, keys }),
        1 => (0_usize..4, 0_usize..4).prop_map(|(lost, before)| Step::LoseEnd { lost, before }),
        4 => (1_u32..8).prop_map(Step::Claim),
        8 => (small, small).prop_map(|(which, outcome)| Step::Settle(which, outcome)),
        2 => (0_u64..8).prop_map(Step::Pass),
        2 => Just(Step::HandLetters),
        4 => (any::<usize>(), any::<usize>()).prop_map(|(which, fate)| Step::Answer(which, fate)),
        2 => Just(Step::Commit),
        1 => (0_i64..500).prop_map(Step::Retreat),
        1 => Just(Step::Rebalance),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// No offset is committed past a record that is neither completed nor safe on the dead-letter topic, nothing is
    /// lost, no key is in two claims, and first deliveries keep the order of the log.
    #[test]
    fn whatever_happens_nothing_is_lost_nor_committed_too_early(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        world.drain();

        for (id, _) in world.log.values() {
            assert!(world.finished.contains(id), "{id} is lost");
        }
        if !world.given_up {
            assert_eq!(world.finished.len() as u128, world.last_id, "what was read is lost with the end of the log");
        }
        assert_eq!(world.state.partitions[&name()].bytes, 0);
    }
}

#[test]
fn a_letter_that_cannot_be_written_is_tried_again_later_and_later_and_cut_at_once() {
    let mut world = World::new();
    world.arrive(0, &[0]);
    world.claim(1);
    world.settle(0, 2);
    let mut waits = Vec::new();
    for _ in 0..6 {
        let start = world.now;
        while world.letters.is_empty() {
            world.now += Duration::from_secs(1);
            world.hand_letters();
        }
        waits.push((world.now - start).as_secs());
        world.answer(0, 2);
    }
    assert_eq!(waits, [1, 1, 2, 4, 8, 15]);

    world.now += Duration::from_secs(15);
    for form in [Form::Whole, Form::WithoutValue, Form::Coordinates] {
        world.hand_letters();
        assert_eq!(world.letters[0].form, form);
        world.answer(0, 1);
    }
    world.hand_letters();
    assert_eq!(world.letters.len(), 0, "there is no smaller form");
    assert_eq!(world.state.totals().unburied, 1);
}

#[test]
fn letters_under_way_are_bounded() {
    let mut world = World::new();
    world.arrive(0, &[0; 300]);
    world.claim(300);
    while !world.held.is_empty() {
        world.settle(0, 2);
    }

    world.hand_letters();
    assert_eq!(world.letters.len(), UNDER_WAY_MAX);
    world.answer(0, 0);
    world.hand_letters();

    assert_eq!(world.letters.len(), UNDER_WAY_MAX);
}

#[test]
fn what_waits_behind_its_key_hides_no_retry_from_the_next_look() {
    let mut world = World::new();
    world.arrive(0, &[1, 1]);
    world.claim(1);
    world.settle(0, 3);

    assert_eq!(
        world.state.next_due(world.now),
        Some(world.now + Duration::from_secs(1))
    );
}

#[test]
fn a_letter_whose_answer_never_comes_is_written_again() {
    let mut world = World::new();
    world.arrive(0, &[0]);
    world.claim(1);
    world.settle(0, 2);
    world.hand_letters();
    let lost = world.letters.pop().unwrap();

    world.now += Duration::from_secs(29);
    world.hand_letters();
    assert_eq!(world.letters.len(), 0, "its answer may still come");
    world.now += Duration::from_secs(1);
    world.hand_letters();
    world.now += Duration::from_secs(1);
    world.hand_letters();

    assert_eq!(world.letters.len(), 1);
    let (state, now) = (&mut world.state, world.now);
    assert!(
        state.delivered(lost.grave, Delivery::Unwritten, now).is_none(),
        "a late failure is held against no letter but its own"
    );
    world.answer(0, 0);
    assert_eq!(world.state.totals().unfinished, 0);
}

/// An event whose letter is written again, and the letter before that had no answer.
fn overdue() -> (World, Letter) {
    let mut world = World::new();
    world.arrive(0, &[0]);
    world.claim(1);
    world.settle(0, 2);
    world.hand_letters();
    let late = world.letters.pop().unwrap();
    for seconds in [30, 1] {
        world.now += Duration::from_secs(seconds);
        world.hand_letters();
    }
    assert_eq!(world.letters.len(), 1);
    (world, late)
}

#[test]
fn a_letter_that_is_known_to_be_safe_late_need_not_be_written_again() {
    let (mut world, late) = overdue();

    let counted = world.state.delivered(late.grave, Delivery::Safe, world.now);

    assert!(counted.is_some());
    assert_eq!(world.state.totals().unfinished, 0);
    assert_eq!(world.state.totals().dead_letters, 1);
    let again = world.letters.pop().unwrap();
    assert!(
        world
            .state
            .delivered(again.grave, Delivery::Safe, world.now)
            .is_none(),
        "it is one dead letter"
    );
}

#[test]
fn a_letter_that_is_safe_late_ends_nothing_of_a_new_assignment() {
    let (mut world, late) = overdue();
    world.rebalance();

    let counted = world.state.delivered(late.grave, Delivery::Safe, world.now);

    assert!(counted.is_none());
    assert_eq!(world.state.totals().unfinished, 1);
}

#[test]
fn the_last_record_given_out_once_more_is_no_loss_of_the_log() {
    let mut world = World::new();
    world.arrive(0, &[0, 0]);
    world.read_from(1);

    world.claim(10);

    assert_eq!(world.held.len(), 2);
}

#[test]
fn where_the_offsets_went_back_to_is_committed_at_once() {
    let mut world = World::new();
    world.arrive(0, &[0; 11]);
    world.claim(20);
    while !world.held.is_empty() {
        world.settle(0, 0);
    }
    world.commit();
    assert_eq!(world.committed, 11);

    world.lose_end(2, 0);

    assert_eq!(world.committed, 8, "a crash would pass over what comes again");
}

#[test]
fn where_an_assignment_begins_is_committed_although_the_group_has_a_later_offset() {
    let mut world = World::new();
    world.arrive(0, &[0; 8]);
    world.claim(20);
    while !world.held.is_empty() {
        world.settle(0, 0);
    }
    world.commit();
    world.rebalance();

    world.lose_end(7, 0);
    world.rebalance();
    world.drain();

    assert_eq!(world.finished.len(), 9, "the record at 0 was passed over");
}

#[test]
fn what_finishes_after_the_client_went_back_is_not_committed_beyond_where_it_reads_on() {
    let mut world = World::new();
    world.arrive(0, &[0; 4]);
    world.claim(10);
    world.settle(0, 0);
    world.commit();
    let partition = world.state.partition_mut(&name()).unwrap();
    partition.retreat(2);

    while !world.held.is_empty() {
        world.settle(0, 0);
    }
    world.commit();
    assert_eq!(
        world.committed, 2,
        "what is written anew at 2 would be passed over"
    );

    world.arrive(0, &[0]);
    world.drain();
    assert_eq!(world.committed, 5);
}
