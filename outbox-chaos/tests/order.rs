//! Order per key over relays that are killed: hot keys, failures, panics, dead letters that are redriven.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has to panic"
)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox::{Names, migrate};
use outbox_chaos::child::Child;
use outbox_chaos::history::{History, Verdict, What};
use outbox_chaos::reckoning::{judge, until_drained};
use outbox_chaos::{Keys, PublisherConfig, RelayConfig, redrive};
use outbox_dev::TestDatabase;
use sqlx::PgConnection;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_outbox-chaos");
const RELAYS: usize = 4;
const PUBLISHERS: u32 = 4;
const KEYS_EACH: u32 = 25;

struct World {
    database: TestDatabase,
    folder: TempDir,
    run: History,
    relays: BTreeMap<String, Child>,
    started: u32,
}

impl World {
    async fn new() -> Self {
        let database = TestDatabase::create().await.expect("a database for the test");
        migrate(&mut database.pool().acquire().await.unwrap(), &Names::default())
            .await
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let run = History::open(folder.path(), "run").unwrap();
        let mut world = Self {
            database,
            folder,
            run,
            relays: BTreeMap::new(),
            started: 0,
        };
        while world.relays.len() < RELAYS {
            world.start_relay();
        }
        world
    }

    async fn connection(&self) -> PgConnection {
        self.database.pool().acquire().await.unwrap().detach()
    }

    fn start_relay(&mut self) {
        self.started += 1;
        let config = RelayConfig {
            name: format!("relay-{}", self.started),
            url: self.database.url().to_owned(),
            folder: self.folder.path().to_owned(),
            lease_ms: 3_000,
            concurrency: 20,
            max_lost: 1_000,
        };
        let relay = Child::start(PROGRAM, "relay", &config).unwrap();
        self.relays.insert(config.name, relay);
    }

    fn start_publisher(&self, n: u32, transactions: u64) -> Child {
        let config = PublisherConfig {
            name: format!("publisher-{n}"),
            url: self.database.url().to_owned(),
            folder: self.folder.path().to_owned(),
            seed: fastrand::u64(..),
            transactions,
            pause_ms: 1,
            rejects: true,
            keys: Keys::Skewed(KEYS_EACH),
        };
        eprintln!("{config:?}");
        Child::start(PROGRAM, "publisher", &config).unwrap()
    }

    /// Kills a relay in the midst of its work, and starts another one.
    fn kill_one(&mut self) {
        let nth = fastrand::usize(..self.relays.len());
        let name = self.relays.keys().nth(nth).unwrap().clone();
        let relay = self.relays.remove(&name).unwrap();
        // Written down first: the kernel takes its time.
        let fault = What::Faulted {
            victim: name.clone(),
            fault: "SIGKILL".to_owned(),
        };
        self.run.write(fault).unwrap();
        relay.kill().unwrap();
        self.run.write(What::Healed { victim: name }).unwrap();
        self.start_relay();
    }

    async fn finish(&mut self) -> Verdict {
        let mut connection = self.connection().await;
        // A parked key is drained once its dead letters are redriven, one after the other.
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            assert!(
                Instant::now() < deadline,
                "events are pending long after the last kill"
            );
            let failed = redrive(&mut connection, &self.run).await.unwrap();
            let drained = until_drained(&mut connection, Duration::from_secs(1)).await;
            if failed == 0 && drained.is_ok() {
                break;
            }
        }
        for (_, relay) in std::mem::take(&mut self.relays) {
            relay.stop().unwrap();
            assert!(relay.end(Duration::from_secs(20)).await.unwrap().success());
        }
        let verdict = judge(&mut connection, self.folder.path()).await.unwrap();
        if !verdict.violations.is_empty() {
            self.folder.disable_cleanup(true);
            eprintln!("the history is in {}", self.folder.path().display());
        }
        verdict
    }
}

/// A hundred keys, four relays; kills and redrives while transactions are made and handled. What the checker says.
async fn run(transactions: u64, kill_every_ms: std::ops::Range<u64>) -> (Verdict, u32) {
    let mut world = World::new().await;
    let mut publishers: Vec<Child> = (1..=PUBLISHERS)
        .map(|n| world.start_publisher(n, transactions))
        .collect();
    let mut connection = world.connection().await;
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut kills = 0;
    // For a while nothing goes wrong: whatever holds up a key then is another event of it.
    tokio::time::sleep(Duration::from_secs(10)).await;
    loop {
        assert!(Instant::now() < deadline, "the publishers do not end");
        tokio::time::sleep(Duration::from_millis(fastrand::u64(kill_every_ms.clone()))).await;
        world.kill_one();
        kills += 1;
        redrive(&mut connection, &world.run).await.unwrap();
        let publishing = |publisher: &mut Child| publisher.ended().unwrap().is_none();
        if kills >= 10 && !publishers.iter_mut().any(publishing) {
            break;
        }
    }
    let verdict = world.finish().await;
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
