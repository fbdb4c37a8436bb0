//! A pgbouncer in transaction mode in front of a test's database.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs, io};

use sqlx::postgres::PgConnectOptions;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use uuid::Uuid;

use crate::TestDatabase;
use crate::cluster::unprivileged;
use crate::error::{DevError, other};

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A pgbouncer with three sessions for whoever connects: every transaction may meet another one. Gone when dropped.
///
/// Needs the program `pgbouncer`.
#[derive(Debug)]
pub struct Pooler {
    process: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.start_kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Pooler {
    /// Starts one in front of the server of that database.
    ///
    /// # Errors
    /// The program is missing, or does not answer.
    pub async fn start(database: &TestDatabase) -> Result<Self, DevError> {
        Self::start_with(database, "").await
    }

    /// The same with further lines of settings.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with(database: &TestDatabase, settings: &str) -> Result<Self, DevError> {
        let failed = |error: io::Error| DevError::control("start pgbouncer", error);
        let address = free_address().map_err(failed)?;
        let folder = env::temp_dir().join(format!("outbox-pooler-{}", Uuid::new_v4().simple()));
        let process = spawn(database, address, &folder, settings).map_err(failed)?;
        let mut pooler = Self {
            process,
            address,
            folder,
        };
        pooler.until_it_answers().await.map_err(failed)?;
        Ok(pooler)
    }

    /// The database as it is seen through the pooler, for a driver that keeps no prepared statements.
    #[must_use]
    pub fn connect_options(&self, database: &TestDatabase) -> PgConnectOptions {
        database
            .connect_options()
            .host(&self.address.ip().to_string())
            .port(self.address.port())
            .statement_cache_capacity(0)
            .extra_float_digits(None)
    }

    /// The database's URL through the pooler, password included.
    #[must_use]
    pub fn url(&self, database: &TestDatabase) -> String {
        let direct = database.connect_options();
        let from = format!("{}:{}", direct.get_host(), direct.get_port());
        database.url().replacen(&from, &self.address.to_string(), 1)
    }

    async fn until_it_answers(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(self.address).await.is_err() {
            if let Some(status) = self.process.try_wait()? {
                return Err(other(format!("pgbouncer ended: {status}")));
            }
            if Instant::now() > deadline {
                return Err(other("pgbouncer does not answer"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

fn spawn(database: &TestDatabase, address: SocketAddr, folder: &Path, more: &str) -> io::Result<Child> {
    let direct = database.connect_options();
    let users = folder.join("users.txt");
    let settings = folder.join("pgbouncer.ini");
    fs::create_dir(folder)?;
    let (user, password) = (direct.get_username(), password(database.url()));
    fs::write(&users, format!("\"{user}\" \"{password}\"\n"))?;
    let text = format!(
        "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = {}\nlisten_port = {}\nunix_socket_dir =\n\
         auth_type = plain\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 200\n{more}\n",
        direct.get_host(),
        direct.get_port(),
        address.ip(),
        address.port(),
        users.display()
    );
    fs::write(&settings, text)?;
    let mut command = Command::new("pgbouncer");
    command
        .arg("-q")
        .arg(&settings)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    // It refuses to run as root, as the server does.
    if let Some(run_as) = unprivileged()? {
        command.uid(run_as.uid).gid(run_as.gid);
        for path in [&users, &settings, folder] {
            chown(path, Some(run_as.uid), Some(run_as.gid))?;
        }
    }
    command.spawn()
}

/// The options of a connection do not give their password away; its URL does.
fn password(url: &str) -> &str {
    let user = url.split_once("://").and_then(|(_, rest)| rest.split_once('@'));
    user.and_then(|(user, _)| user.split_once(':'))
        .map_or("", |(_, password)| password)
}
