//! A pgbouncer in transaction mode: every statement may meet another session.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outbox_dev::TestDatabase;
use sqlx::postgres::PgConnectOptions;
use tokio::time::Instant;

/// A pgbouncer in front of the server, gone when dropped.
pub(crate) struct Pooler {
    process: Child,
    direct: PgConnectOptions,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// It refuses to run as root, as the server does.
fn unprivileged(command: &mut Command, folder: &std::path::Path) {
    let id = |of: &str| {
        let output = Command::new("id").args([of, "nobody"]).output().unwrap().stdout;
        String::from_utf8(output).unwrap().trim().parse::<u32>().unwrap()
    };
    let me = Command::new("id").arg("-u").output().unwrap().stdout;
    if me == b"0\n" {
        let (uid, gid) = (id("-u"), id("-g"));
        command.uid(uid).gid(gid);
        for path in std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .chain([folder.to_owned()])
        {
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
        }
    }
}

impl Pooler {
    pub(crate) async fn start(database: &TestDatabase) -> Self {
        let direct = database.connect_options();
        let url = database.url();
        let password = url
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once('@'))
            .unwrap()
            .0;
        let password = password.split_once(':').map_or("", |(_, password)| password);
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let folder = tempfile::tempdir().unwrap();
        let users = folder.path().join("users.txt");
        std::fs::write(&users, format!("\"{}\" \"{password}\"\n", direct.get_username())).unwrap();
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = plain\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 3\n\
         max_client_conn = 200\nserver_reset_query =\n",
            direct.get_host(),
            direct.get_port(),
            users.display()
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Command::new("pgbouncer");
        command
            .arg("-q")
            .arg(&settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        unprivileged(&mut command, folder.path());
        let process = command.spawn().expect("pgbouncer");
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "pgbouncer does not answer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self {
            process,
            direct,
            port,
            _folder: folder,
        }
    }

    /// What it takes to get through it: no settings of a session, and no statements that stay prepared.
    pub(crate) fn options(&self) -> PgConnectOptions {
        let through = self.direct.clone().host("127.0.0.1").port(self.port);
        through.statement_cache_capacity(0).extra_float_digits(None)
    }

    /// The URL of a database with this one's address.
    pub(crate) fn url(&self, database: &TestDatabase) -> String {
        let direct = format!("@{}:{}/", self.direct.get_host(), self.direct.get_port());
        let through = database
            .url()
            .replace(&direct, &format!("@127.0.0.1:{}/", self.port));
        assert_ne!(through, database.url(), "its URL has another form");
        through
    }
}
