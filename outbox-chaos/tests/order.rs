//! Order per key over relays that are killed: hot keys, failures, panics, dead letters that are redriven.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has to panic"
)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_chaos::child::Child;
use outbox_chaos::history::Verdict;
use outbox_chaos::reckoning::{judge, until_drained};
use outbox_chaos::{Keys, PublisherConfig, redrive};
use support::{World, publisher};

const RELAYS: usize = 4;
const PUBLISHERS: u32 = 4;
const KEYS_EACH: u32 = 25;

/// The relays that run at present.
struct Relays {
    world: World,
    running: BTreeMap<String, Child>,
    started: u32,
}

impl Relays {
    async fn start() -> Self {
        let mut relays = Self {
            world: World::new().await,
            running: BTreeMap::new(),
            started: 0,
        };
        while relays.running.len() < RELAYS {
            relays.start_one();
        }
        relays
    }

    fn start_one(&mut self) {
        self.started += 1;
        let name = format!("relay-{}", self.started);
        let relay = self.world.relay(&name, Duration::from_secs(3), 1_000);
        self.running.insert(name, relay);
    }

    fn start_publisher(&self, n: u32, transactions: u64) -> Child {
        publisher(&PublisherConfig {
            pause_ms: 1,
            rejects: true,
            keys: Keys::Skewed(KEYS_EACH),
            ..self
                .world
                .publisher_config(&format!("publisher-{n}"), transactions)
        })
    }

    /// Kills a relay in the midst of its work, and starts another one.
    fn kill_one(&mut self) {
        let nth = fastrand::usize(..self.running.len());
        let name = self.running.keys().nth(nth).unwrap().clone();
        let relay = self.running.remove(&name).unwrap();
        self.world.kill(&name, relay);
        self.start_one();
    }

    async fn finish(&mut self) -> Verdict {
        let mut connection = self.world.connection().await;
        // A parked key is drained once its dead letters are redriven, one after the other.
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            assert!(
                Instant::now() < deadline,
                "events are pending long after the last kill"
            );
            let failed = redrive(&mut connection, &self.world.run).await.unwrap();
            let drained = until_drained(&mut connection, Duration::from_secs(1)).await;
            if failed == 0 && drained.is_ok() {
                break;
            }
        }
        for (_, relay) in std::mem::take(&mut self.running) {
            relay.stop().unwrap();
            assert!(relay.end(Duration::from_secs(20)).await.unwrap().success());
        }
        let verdict = judge(&mut connection, self.world.folder.path()).await.unwrap();
        if !verdict.violations.is_empty() {
            self.world.folder.disable_cleanup(true);
            eprintln!("the history is in {}", self.world.folder.path().display());
        }
        verdict
    }
}

/// A hundred keys, four relays; kills and redrives while transactions are made and handled. What the checker says.
async fn run(transactions: u64, kill_every_ms: std::ops::Range<u64>) -> (Verdict, u32) {
    let mut relays = Relays::start().await;
    let mut publishers: Vec<Child> = (1..=PUBLISHERS)
        .map(|n| relays.start_publisher(n, transactions))
        .collect();
    let mut connection = relays.world.connection().await;
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut kills = 0;
    // For a while nothing goes wrong: whatever holds up a key then is another event of it.
    tokio::time::sleep(Duration::from_secs(10)).await;
    loop {
        assert!(Instant::now() < deadline, "the publishers do not end");
        tokio::time::sleep(Duration::from_millis(fastrand::u64(kill_every_ms.clone()))).await;
        relays.kill_one();
        kills += 1;
        redrive(&mut connection, &relays.world.run).await.unwrap();
        let publishing = |publisher: &mut Child| publisher.ended().unwrap().is_none();
        if kills >= 10 && !publishers.iter_mut().any(publishing) {
            break;
        }
    }
    let verdict = relays.finish().await;
    eprintln!("{kills} kills: {:?}", verdict.summary);
    (verdict, kills)
}

#[tokio::test]
async fn twenty_thousand_events_keep_the_order_of_a_hundred_keys_while_relays_are_killed() {
    let (verdict, kills) = run(2_100, 400..1_500).await;

    assert_eq!(verdict.violations, []);
    let summary = &verdict.summary;
    assert!(summary.keys == 100 && summary.committed >= 20_000, "{summary:?}");
    assert!(kills >= 10 && summary.failed > 500, "{kills} kills, {summary:?}");
    let again = summary.again_after_done + summary.again_after_cut;
    assert!(
        again > 0,
        "no relay was killed in the midst of a delivery: {summary:?}"
    );
    assert!(
        summary.long_deliveries > 0,
        "no key was busy for long: {summary:?}"
    );
}
