//! A server, from whichever way is open, and control over one of our own.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    sync::Arc,
    time::Duration,
};

use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};
use tokio::{sync::OnceCell, time::Instant};
use uuid::Uuid;

use crate::{
    cluster::Cluster,
    container::Container,
    error::{DevError, other, with_causes},
    way::{Settings, Way},
};

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// A Postgres server. One of our own (not by URL) ends with this handle.
#[derive(Debug)]
pub struct DevPostgres {
    backing: Backing,
    url: String,
}

#[derive(Debug)]
enum Backing {
    Url,
    Container(Container),
    Cluster(Cluster),
}

/// How a server goes down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Sessions are ended, then it shuts down in order.
    Fast,
    /// It drops everything at once; the next start goes through crash recovery.
    Immediate,
    /// SIGKILL: as after a power cut of the process.
    Kill,
}

/// What a server of our own is started with.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Waits for the disk at commit, as in production. Off by default: tests are three times as fast, but a server that is
    /// killed may forget what was committed in its last moments.
    pub fsync: bool,
    /// More lines for `postgresql.conf`, name and value; they win over ours.
    pub extra: Vec<(String, String)>,
}

impl ServerOptions {
    /// Sets [`fsync`](Self::fsync).
    #[must_use]
    pub fn with_fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// Adds one setting, such as `("max_prepared_transactions", "10")`.
    #[must_use]
    pub fn with_setting(mut self, name: &str, value: &str) -> Self {
        self.extra.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let durable = if self.fsync { "on" } else { "off" };
        let ours = [
            ("fsync", durable),
            ("synchronous_commit", durable),
            ("full_page_writes", durable),
            ("max_connections", "200"),
            ("shared_buffers", "64MB"),
            ("jit", "off"),
            // Dropping a database waits for a session that is still logging in, which a test that ends may leave behind.
            ("authentication_timeout", "10s"),
        ];
        let ours = ours.map(|(name, value)| (name.to_owned(), value.to_owned()));
        ours.into_iter().chain(self.extra.iter().cloned()).collect()
    }
}

impl DevPostgres {
    /// A server by the first way that is open: see the crate's documentation.
    ///
    /// # Errors
    /// [`DevError::NoServer`] lists what failed with each way.
    ///
    /// # Cancel safety
    /// What was half started is removed.
    pub async fn start() -> Result<Self, DevError> {
        let settings = Settings::from_env()?;
        Self::first_of(&settings.ways(), &settings, ServerOptions::default()).await
    }

    /// A server that nobody else uses and that may be stopped, restarted and killed. Never the one given
    /// by URL.
    ///
    /// # Errors
    /// [`DevError::NoServer`] lists what failed with each way.
    ///
    /// # Cancel safety
    /// What was half started is removed.
    pub async fn start_own(options: ServerOptions) -> Result<Self, DevError> {
        let settings = Settings::from_env()?;
        Self::first_of(&settings.ways_to_own(), &settings, options).await
    }

    /// The server that all tests of this process share, started at first use, gone with the process.
    ///
    /// # Errors
    /// As [`start`](Self::start). Later calls give the same error at once: it can take a minute to find out,
    /// and hundreds of tests ask.
    pub async fn shared() -> Result<&'static Self, DevError> {
        // A static runs no destructor, and need not: the supervisor sees the process end.
        static SHARED: OnceCell<Result<DevPostgres, Arc<DevError>>> = OnceCell::const_new();
        let started = SHARED
            .get_or_init(|| async { Self::start().await.map_err(Arc::new) })
            .await;
        started
            .as_ref()
            .map_err(|error| DevError::Shared(Arc::clone(error)))
    }

    async fn first_of(ways: &[Way], settings: &Settings, options: ServerOptions) -> Result<Self, DevError> {
        let mut failures = Vec::new();
        for way in ways {
            match Self::by(*way, settings, options.clone()).await {
                Ok(server) => return Ok(server),
                // Not being set is no failure worth a line.
                Err(error) if *way == Way::Url && settings.url.is_none() => {
                    failures.push((*way, Box::from(error)));
                }
                Err(error) => {
                    let text = with_causes(&error);
                    eprintln!(
                        "outbox-dev: no Postgres by way of {way}: {}",
                        text.lines().next().unwrap_or_default()
                    );
                    failures.push((*way, Box::from(error)));
                }
            }
        }
        Err(DevError::NoServer(failures))
    }

    async fn by(way: Way, settings: &Settings, options: ServerOptions) -> Result<Self, DevError> {
        let (backing, url) = match way {
            Way::Url => {
                let unset = || DevError::control("use DATABASE_URL", other("it is not set"));
                (Backing::Url, settings.url.clone().ok_or_else(unset)?)
            }
            Way::Docker => {
                let container = Container::start(settings, options).await?;
                let url = container.url.clone();
                (Backing::Container(container), url)
            }
            Way::Local => {
                let cluster = Cluster::start(settings, options).await?;
                let url = cluster.url.clone();
                (Backing::Cluster(cluster), url)
            }
        };
        let server = Self { backing, url };
        server.wait_until_it_answers().await?;
        if settings.keep {
            server.keep().await?;
        }
        Ok(server)
    }

    async fn keep(&self) -> Result<(), DevError> {
        match &self.backing {
            Backing::Url => Ok(()),
            Backing::Container(container) => container.keep(),
            Backing::Cluster(cluster) => cluster.keep().await,
        }
    }

    /// Where it came from.
    #[must_use]
    pub fn way(&self) -> Way {
        match self.backing {
            Backing::Url => Way::Url,
            Backing::Container(_) => Way::Docker,
            Backing::Cluster(_) => Way::Local,
        }
    }

    /// Its URL, password included. Of a server of our own: user `postgres`, database `postgres`, and the
    /// port stays the same through restarts.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Parsed [`url`](Self::url).
    ///
    /// # Errors
    /// `DATABASE_URL` is no URL.
    pub fn connect_options(&self) -> Result<PgConnectOptions, DevError> {
        Ok(self.url.parse()?)
    }

    /// Takes the server down and returns when it is.
    ///
    /// # Errors
    /// [`DevError::NotOurs`] for one given by URL.
    pub async fn stop(&self, how: Stop) -> Result<(), DevError> {
        match &self.backing {
            Backing::Url => Err(DevError::NotOurs),
            Backing::Container(container) => container.stop(how).await,
            Backing::Cluster(cluster) => cluster.stop(how).await,
        }
    }

    /// Brings a stopped server up again, on the same port, and returns when it answers.
    ///
    /// # Errors
    /// [`DevError::NotOurs`] for one given by URL.
    pub async fn resume(&self) -> Result<(), DevError> {
        match &self.backing {
            Backing::Url => return Err(DevError::NotOurs),
            Backing::Container(container) => container.resume().await?,
            Backing::Cluster(cluster) => cluster.resume().await?,
        }
        self.wait_until_it_answers().await
    }

    /// [`stop`](Self::stop), then [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`DevError::NotOurs`] for one given by URL.
    pub async fn restart(&self, how: Stop) -> Result<(), DevError> {
        self.stop(how).await?;
        self.resume().await
    }

    async fn wait_until_it_answers(&self) -> Result<(), DevError> {
        let options = self.connect_options()?;
        // A server given by URL is up or it is not; one of ours may still be in crash recovery.
        let patience = if self.way() == Way::Url {
            Duration::from_secs(5)
        } else {
            READY_TIMEOUT
        };
        let deadline = Instant::now() + patience;
        let mut last = other("no answer");
        while let Ok(connected) =
            tokio::time::timeout_at(deadline, PgConnection::connect_with(&options)).await
        {
            match connected {
                Ok(connection) => return Ok(connection.close().await?),
                Err(error) if self.way() == Way::Url => return Err(error.into()),
                Err(error) => last = io::Error::other(error),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(DevError::control("reach the server", last))
    }
}

/// A free port below the range from which the system takes ports for outgoing connections, so that it is
/// still free when a stopped server comes back.
pub(crate) fn free_port() -> io::Result<u16> {
    let mut last = other("no free port");
    for _ in 0..100 {
        let random = Uuid::new_v4().as_u128() % 15_000;
        let port = 15_000 + u16::try_from(random).map_err(io::Error::other)?;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}
