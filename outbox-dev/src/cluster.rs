//! The local way: a throw-away cluster from the machine's own Postgres programs.

use std::{
    env, fs, io,
    os::unix::fs::{DirBuilderExt, chown},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
};

use uuid::Uuid;

use crate::{
    error::{DevError, other},
    postgres::{ServerOptions, Stop, free_port},
    supervisor::{RunAs, Supervisor},
    way::Settings,
};

const SCRIPT: &str = include_str!("../scripts/cluster.sh");

/// A running cluster; dropping it removes it.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    supervisor: Arc<Mutex<Supervisor>>,
    dir: PathBuf,
    pub(crate) url: String,
}

impl Cluster {
    pub(crate) async fn start(settings: &Settings, options: ServerOptions) -> Result<Self, DevError> {
        let bin = settings.bin.clone();
        let started = tokio::task::spawn_blocking(move || {
            let bin = find_programs(bin)?;
            make(&bin, &options)
        });
        let cluster = started
            .await
            .map_err(|error| DevError::control("start a cluster", error))?;
        cluster.map_err(|error| DevError::control("start a cluster", error))
    }

    pub(crate) async fn stop(&self, how: Stop) -> Result<(), DevError> {
        let line = match how {
            Stop::Fast => "stop fast",
            Stop::Immediate => "stop immediate",
            Stop::Kill => "kill",
        };
        self.tell(line)
            .await
            .map_err(|error| DevError::control("stop the cluster", error))
    }

    pub(crate) async fn resume(&self) -> Result<(), DevError> {
        self.tell("start")
            .await
            .map_err(|error| DevError::control("start the cluster again", error))
    }

    /// Lets the server outlive its owner, and says where it is.
    pub(crate) async fn keep(&self) -> Result<(), DevError> {
        self.tell("keep")
            .await
            .map_err(|error| DevError::control("keep the cluster", error))?;
        eprintln!(
            "outbox-dev: to be kept: {}, its files in {}",
            self.url,
            self.dir.display()
        );
        Ok(())
    }

    async fn tell(&self, line: &'static str) -> io::Result<()> {
        let cluster = self.clone();
        let told = tokio::task::spawn_blocking(move || {
            let mut supervisor = cluster.supervisor.lock().unwrap_or_else(PoisonError::into_inner);
            supervisor
                .tell(line)
                .map_err(|error| with_logs(&error, &cluster.dir))
        });
        told.await.map_err(io::Error::other)?
    }
}

fn make(bin: &Path, options: &ServerOptions) -> io::Result<Cluster> {
    let run_as = unprivileged()?;
    let port = free_port()?;
    let id = Uuid::new_v4().simple().to_string();
    let dir = env::temp_dir().join(format!("outbox-pg-{}", &id[..12]));
    let password = Uuid::new_v4().simple().to_string();

    fs::DirBuilder::new().mode(0o700).create(&dir)?;
    give_away(&dir, run_as)?;
    // From here on the supervisor removes the directory, whatever happens to us.
    let mut supervisor = Supervisor::spawn(SCRIPT, &[bin, &dir], run_as)?;
    for (name, text) in [
        ("password", &password),
        ("settings", &configuration(port, options)),
    ] {
        let file = dir.join(name);
        fs::write(&file, text)?;
        give_away(&file, run_as)?;
    }
    for line in ["init", "start"] {
        supervisor.tell(line).map_err(|error| with_logs(&error, &dir))?;
    }
    let url = format!("postgres://postgres:{password}@127.0.0.1:{port}/postgres");
    Ok(Cluster {
        supervisor: Arc::new(Mutex::new(supervisor)),
        dir,
        url,
    })
}

fn configuration(port: u16, options: &ServerOptions) -> String {
    // No sockets: their path would limit the length of the directory's. Shared memory in files, which go
    // with the directory even after a SIGKILL.
    let mut text = format!(
        "listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\n\
         dynamic_shared_memory_type = mmap\n"
    );
    for (name, value) in options.settings() {
        text.push_str(&format!("{name} = '{}'\n", value.replace('\'', "''")));
    }
    text
}

/// Where root must not be: the server's user, an unprivileged one. `None` where we are not root.
pub(crate) fn unprivileged() -> io::Result<Option<RunAs>> {
    if id(&["-u"])? != 0 {
        return Ok(None);
    }
    for user in ["postgres", "nobody"] {
        if let (Ok(uid), Ok(gid)) = (id(&["-u", user]), id(&["-g", user])) {
            return Ok(Some(RunAs { uid, gid }));
        }
    }
    Err(other(
        "the server refuses to run as root, and there is no user postgres or nobody",
    ))
}

fn id(args: &[&str]) -> io::Result<u32> {
    let output = Command::new("id").args(args).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().map_err(io::Error::other)
}

fn give_away(path: &Path, run_as: Option<RunAs>) -> io::Result<()> {
    run_as.map_or(Ok(()), |to| chown(path, Some(to.uid), Some(to.gid)))
}

/// The folder that holds the server's programs.
fn find_programs(named: Option<PathBuf>) -> io::Result<PathBuf> {
    let complete = |dir: &PathBuf| {
        ["initdb", "pg_ctl", "postgres"]
            .iter()
            .all(|name| dir.join(name).is_file())
    };
    if let Some(dir) = named {
        let message = format!("no initdb, pg_ctl and postgres in {}", dir.display());
        return Some(dir).filter(complete).ok_or_else(|| other(message));
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).chain(packaged()).find(complete);
    found.ok_or_else(|| other("no initdb, pg_ctl and postgres on the PATH or in /usr/lib/postgresql"))
}

/// Debian's folders, newest version first.
fn packaged() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<u32> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    versions.sort_unstable_by(|a, b| b.cmp(a));
    versions
        .iter()
        .map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin")))
        .collect()
}

fn with_logs(error: &io::Error, dir: &Path) -> io::Error {
    let tail = |name| {
        let text = fs::read_to_string(dir.join(name)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(12).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    };
    other(format!(
        "{error}\n{}\n{}",
        tail("control.log"),
        tail("server.log")
    ))
}
