//! The source in memory under random operations, judged by the same checker, and shrunk when something does not hold.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod op;
mod world;

use op::{Op, ops};
use outbox_chaos::history::{Violation, check};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use world::World;

fn violations(ops: Vec<Op>, backwards: bool) -> Vec<Violation> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(async {
        let mut world = World::new(backwards);
        for op in ops {
            world.act(op).await;
        }
        world.settle_all().await;
        check(&world.history()).violations
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_is_done_to_it_the_source_in_memory_keeps_the_rules(ops in ops()) {
        prop_assert_eq!(violations(ops, false), []);
    }
}

#[test]
fn a_relay_that_handles_its_runs_backwards_is_caught_and_the_case_is_small() {
    let caught = TestRunner::deterministic().run(&ops(), |ops| {
        prop_assert_eq!(violations(ops, true), []);
        Ok(())
    });
    let Err(proptest::test_runner::TestError::Fail(_, smallest)) = caught else {
        panic!("not caught: the test beside it shows nothing");
    };
    // Two events of a key, one claim, and a handler.
    assert!(smallest.len() <= 6, "{smallest:?}");
}
