//! Many random faults at random places, on the model broker. Runs `OUTBOX_KAFKA_SEEDS` seeds, 8 by default, from
//! `OUTBOX_KAFKA_SEED` on, by default the first: as many as are through before the obvious dispatcher is beside them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::time::Duration;

use support::event::{events, id};
use support::model_broker::{At, Fault, ModelBroker, code};
use support::relay::Pace;
use support::scene::{MS, Run, guarded, naive, options, run};

/// Refused whatever comes, so that one event ends dead.
const POISON: support::event::Id = id(5, 100);
const KEYS: usize = 12;

/// A generator that is the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn arm(broker: &ModelBroker, random: &mut Random) {
    // First, so that no other fault lets it through.
    broker.arm(
        At::Event(POISON),
        Fault::Refuse(code::MESSAGE_TOO_LARGE),
        usize::MAX,
    );
    for _ in 0..12 {
        let at = id(random.below(KEYS as u64) as u32, random.below(250));
        let fault = match random.below(8) {
            0 => Fault::Refuse(code::MESSAGE_TOO_LARGE),
            1 => Fault::Refuse(code::UNKNOWN_SERVER_ERROR),
            2 => Fault::Refuse(code::INVALID_RECORD),
            3 => Fault::Refuse(code::NOT_ENOUGH_REPLICAS),
            4 => Fault::Refuse(code::NOT_LEADER),
            5 => Fault::LoseAnswer,
            6 => Fault::Hold(MS(500 + random.below(3000))),
            _ => Fault::Down(MS(500 + random.below(3000))),
        };
        broker.arm(At::Event(at), fault, 1 + random.below(2) as usize);
    }
}

async fn chaos(seed: u64, guard: bool) -> Run {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let broker = ModelBroker::start(3, MS(1)).await;
    arm(&broker, &mut random);
    let batch_bytes = [1, 2_000, 10_000][random.below(3) as usize];
    let dispatcher = if guard {
        guarded(
            &broker,
            options()
                .with_delivery_timeout(MS(2000))
                .with_batch_bytes_max(batch_bytes),
        )
    } else {
        naive(&broker, batch_bytes)
    };
    let pace = Pace {
        pause: MS(10),
        run_max: 1 + random.below(100) as usize,
        ..Pace::default()
    };
    run(&broker, &[dispatcher], &events(3000, KEYS), pace).await
}

fn setting(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(name).unwrap_or_else(|_| otherwise.to_string());
    text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_never_invert_a_key_nor_lose_an_event() {
    let first = setting("OUTBOX_KAFKA_SEED", 0);
    let (mut duplicates, mut took) = (0, Duration::ZERO);
    for seed in first..first + setting("OUTBOX_KAFKA_SEEDS", 8) {
        let run = chaos(seed, true).await;
        println!("seed {seed}: {run:?}");
        // A record may be refused twice by chance, once with others and once alone, and is then dead by right.
        run.verdict.assert_sound(&format!("seed {seed}"));
        assert!(run.finished, "seed {seed}: events are left: {run:?}");
        assert!(run.dead.contains(&POISON), "seed {seed}: {run:?}");
        duplicates += run.verdict.duplicates;
        took += run.took;
    }
    println!("duplicates {duplicates}, time {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_faults_catch_the_obvious_dispatcher() {
    let (mut inversions, mut lost) = (0, 0);
    for seed in 0..2 {
        let run = chaos(seed, false).await;
        println!("naive, seed {seed}: {run:?}");
        inversions += run.verdict.inversions;
        lost += run.verdict.lost;
    }

    assert!(inversions + lost > 0, "the faults are too weak to show anything");
}
