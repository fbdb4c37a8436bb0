//! Who takes part in a run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use outbox::{BoxError, Names, migrate};
use outbox_dev::{DevPostgres, Proxy, ServerOptions, TestDatabase};
use tempfile::TempDir;

use crate::child::Child;
use crate::history::History;
use crate::{Keys, PublisherConfig, RelayConfig};

const RELAYS: u32 = 3;
const PUBLISHERS: u32 = 4;
/// Short, so that what is lost comes back within the run; long enough for a machine that does other things as well.
pub(super) const LEASE: Duration = Duration::from_secs(4);

/// The server, the processes, and the proxies between them.
pub(super) struct Cast {
    program: PathBuf,
    pub(super) relays: BTreeMap<String, Child>,
    publishers: Vec<Child>,
    pub(super) relay_proxy: Proxy,
    pub(super) publisher_proxy: Proxy,
    pub(super) history: History,
    pub(super) folder: TempDir,
    pub(super) database: TestDatabase,
    // Last, so that it outlives its database.
    pub(super) server: DevPostgres,
    started: u32,
}

impl Cast {
    pub(super) async fn start(random: &mut fastrand::Rng) -> Result<Self, BoxError> {
        let server = DevPostgres::start_own(ServerOptions::default().with_fsync(true)).await?;
        let database = TestDatabase::create_on(&server).await?;
        migrate(&mut *database.pool().acquire().await?, &Names::default()).await?;
        let direct = database.connect_options();
        let target = format!("{}:{}", direct.get_host(), direct.get_port());
        let folder = tempfile::Builder::new().prefix("outbox-chaos-").tempdir()?;
        let mut cast = Self {
            program: std::env::current_exe()?,
            relays: BTreeMap::new(),
            publishers: Vec::new(),
            relay_proxy: Proxy::start(&*target).await?,
            publisher_proxy: Proxy::start(&*target).await?,
            history: History::open(folder.path(), "run")?,
            folder,
            database,
            server,
            started: 0,
        };
        for _ in 0..RELAYS {
            cast.start_relay()?;
        }
        for n in 1..=PUBLISHERS {
            cast.start_publisher(n, random.u64(..))?;
        }
        Ok(cast)
    }

    /// The database as it is seen through a proxy.
    fn url_through(&self, proxy: &Proxy) -> String {
        let direct = self.database.connect_options();
        let from = format!("{}:{}", direct.get_host(), direct.get_port());
        self.database
            .url()
            .replacen(&from, &proxy.address().to_string(), 1)
    }

    pub(super) fn start_relay(&mut self) -> Result<(), BoxError> {
        self.started += 1;
        let name = format!("relay-{}", self.started);
        let config = RelayConfig {
            name: name.clone(),
            url: self.url_through(&self.relay_proxy),
            folder: self.folder.path().to_owned(),
            lease_ms: u64::try_from(LEASE.as_millis())?,
            concurrency: 20,
            // Hit this often, an innocent event may be alone in the hands of several relays that are killed.
            max_lost: 1_000,
        };
        let relay = Child::start(&self.program, "relay", &config)?;
        self.relays.insert(name, relay);
        Ok(())
    }

    fn start_publisher(&mut self, n: u32, seed: u64) -> Result<(), BoxError> {
        let config = PublisherConfig {
            name: format!("publisher-{n}"),
            url: self.url_through(&self.publisher_proxy),
            folder: self.folder.path().to_owned(),
            seed,
            transactions: 0,
            pause_ms: 20,
            rejects: true,
            keys: Keys::Some,
        };
        self.publishers
            .push(Child::start(&self.program, "publisher", &config)?);
        Ok(())
    }

    /// No fault that the run does may end a process by itself.
    pub(super) fn check_that_all_live(&mut self) -> Result<(), BoxError> {
        for child in self.relays.values_mut().chain(&mut self.publishers) {
            if let Some(status) = child.ended()? {
                return Err(format!("a process ended by itself: {status}").into());
            }
        }
        Ok(())
    }

    pub(super) async fn stop_publishing(&mut self) -> Result<(), BoxError> {
        for publisher in self.publishers.drain(..) {
            publisher.stop()?;
            publisher.end(Duration::from_secs(20)).await?;
        }
        Ok(())
    }

    pub(super) async fn stop_relaying(&mut self) -> Result<(), BoxError> {
        for (name, relay) in std::mem::take(&mut self.relays) {
            relay.stop()?;
            let status = relay.end(Duration::from_secs(20)).await?;
            if !status.success() {
                return Err(format!("{name} did not stop in good order: {status}").into());
            }
        }
        Ok(())
    }
}
