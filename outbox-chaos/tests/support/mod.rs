//! A database and a folder for the history, and the programs that work on both.

use std::time::Duration;

use outbox::{Names, migrate};
use outbox_chaos::child::Child;
use outbox_chaos::history::{History, What};
use outbox_chaos::{Keys, PublisherConfig, RelayConfig};
use outbox_dev::TestDatabase;
use sqlx::PgConnection;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_outbox-chaos");

pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) folder: TempDir,
    pub(crate) run: History,
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::create().await.expect("a database for the test");
        migrate(&mut database.pool().acquire().await.unwrap(), &Names::default())
            .await
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let run = History::open(folder.path(), "run").unwrap();
        Self {
            database,
            folder,
            run,
        }
    }

    pub(crate) async fn connection(&self) -> PgConnection {
        self.database.pool().acquire().await.unwrap().detach()
    }

    pub(crate) fn relay(&self, name: &str, lease: Duration, max_lost: u32) -> Child {
        let config = RelayConfig {
            name: name.to_owned(),
            url: self.database.url().to_owned(),
            folder: self.folder.path().to_owned(),
            lease_ms: lease.as_millis() as u64,
            concurrency: 20,
            max_lost,
        };
        Child::start(PROGRAM, "relay", &config).unwrap()
    }

    /// A publisher of a few keys, to be changed where a test wants something else.
    pub(crate) fn publisher_config(&self, name: &str, transactions: u64) -> PublisherConfig {
        PublisherConfig {
            name: name.to_owned(),
            url: self.database.url().to_owned(),
            folder: self.folder.path().to_owned(),
            seed: fastrand::u64(..),
            transactions,
            pause_ms: 15,
            rejects: false,
            keys: Keys::Some,
        }
    }

    /// Kills a relay in the midst of its work.
    pub(crate) fn kill(&self, name: &str, relay: Child) {
        let victim = name.to_owned();
        // Written down first: the kernel takes its time.
        let fault = What::Faulted {
            victim: victim.clone(),
            fault: "SIGKILL".to_owned(),
        };
        self.run.write(fault).unwrap();
        relay.kill().unwrap();
        self.run.write(What::Healed { victim }).unwrap();
    }
}

pub(crate) fn publisher(config: &PublisherConfig) -> Child {
    eprintln!("{config:?}");
    Child::start(PROGRAM, "publisher", config).unwrap()
}
