//! Each way to a server, and that nothing is left of it, however its owner ends.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use outbox_dev::{DevPostgres, ServerOptions, Way};
use sqlx::{Connection, PgConnection};

const PATIENCE: Duration = Duration::from_secs(60);

/// The program of this crate, which starts a server and prints its URL.
fn program(set: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox-dev"));
    for name in ["OUTBOX_DEV_POSTGRES", "DATABASE_URL", "OUTBOX_DEV_KEEP"] {
        command.env_remove(name);
    }
    // Where this run forces a way, its children take it too.
    if let Ok(way) = std::env::var("OUTBOX_DEV_POSTGRES")
        && way != "url"
    {
        command.env("OUTBOX_DEV_POSTGRES", way);
    }
    command.envs(set.iter().copied());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    command
}

struct Owner {
    child: Child,
    url: String,
}

impl Owner {
    fn start(set: &[(&str, &str)]) -> Self {
        let mut child = program(set).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut url)
            .unwrap();
        assert!(url.starts_with("postgres://"), "no URL: {url:?}");
        Self {
            child,
            url: url.trim_end().to_owned(),
        }
    }

    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        let status = Command::new("kill")
            .args(["-s", signal, "--", &group])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Closing its input ends it in order.
    fn finish(mut self) -> String {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
        std::mem::take(&mut self.url)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn answers(url: &str) -> bool {
    PgConnection::connect(url).await.is_ok()
}

async fn is_gone(url: &str) {
    let deadline = Instant::now() + PATIENCE;
    while answers(url).await {
        assert!(Instant::now() < deadline, "still there: {url}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn files_are_gone(dir: &str) {
    let deadline = Instant::now() + PATIENCE;
    while std::fs::exists(dir).unwrap() {
        assert!(Instant::now() < deadline, "still there: {dir}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn data_directory(url: &str) -> String {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar("SHOW data_directory")
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_server_given_by_url_is_used_and_left_alone() {
    let server = DevPostgres::shared().await.unwrap();

    let owner = Owner::start(&[("OUTBOX_DEV_POSTGRES", "url"), ("DATABASE_URL", server.url())]);

    assert_eq!(owner.finish(), server.url());
    assert!(answers(server.url()).await);
}

#[tokio::test]
#[ignore = "needs Docker"]
async fn a_container_is_started_and_removed() {
    let owner = Owner::start(&[("OUTBOX_DEV_POSTGRES", "docker")]);
    assert!(answers(&owner.url).await);

    let url = owner.finish();

    is_gone(&url).await;
}

#[tokio::test]
#[ignore = "needs Docker"]
async fn a_container_is_removed_after_sigkill() {
    let owner = Owner::start(&[("OUTBOX_DEV_POSTGRES", "docker")]);
    let port = owner.url.rsplit([':', '/']).nth(1).unwrap().to_owned();
    let list = || {
        Command::new("docker")
            .args(["ps", "-aq", "--filter", &format!("label=outbox-dev.port={port}")])
            .output()
            .unwrap()
    };
    assert!(!list().stdout.is_empty());

    owner.signal("KILL");

    let deadline = Instant::now() + PATIENCE;
    while !list().stdout.is_empty() {
        assert!(Instant::now() < deadline, "the container is still there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "needs Postgres programs on this machine"]
async fn a_local_cluster_is_started_and_removed() {
    let owner = Owner::start(&[("OUTBOX_DEV_POSTGRES", "local")]);
    let directory = data_directory(&owner.url).await;

    let url = owner.finish();

    // Its end waits for the removal, so there is nothing to wait for here.
    assert!(!answers(&url).await);
    assert!(!std::fs::exists(directory).unwrap());
}

#[tokio::test]
#[ignore = "needs Postgres programs on this machine"]
async fn a_local_cluster_is_removed_after_sigkill() {
    let owner = Owner::start(&[("OUTBOX_DEV_POSTGRES", "local")]);
    let directory = data_directory(&owner.url).await;

    owner.signal("KILL");

    is_gone(&owner.url).await;
    files_are_gone(directory.trim_end_matches("/data")).await;
}

#[tokio::test]
#[ignore = "needs Postgres programs on this machine"]
async fn a_cluster_to_be_kept_outlives_its_owner() {
    let owner = Owner::start(&[("OUTBOX_DEV_POSTGRES", "local"), ("OUTBOX_DEV_KEEP", "1")]);
    let directory = data_directory(&owner.url).await;

    let url = owner.finish();

    assert!(answers(&url).await);
    let pid = std::fs::read_to_string(format!("{directory}/postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap();
    assert!(
        Command::new("kill")
            .args(["-s", "QUIT", pid])
            .status()
            .unwrap()
            .success()
    );
    is_gone(&url).await;
    std::fs::remove_dir_all(directory.trim_end_matches("/data")).unwrap();
}

#[tokio::test]
async fn a_server_is_gone_after_ctrl_c() {
    let owner = Owner::start(&[]);
    assert!(answers(&owner.url).await);

    owner.signal("INT");

    is_gone(&owner.url).await;
}

#[tokio::test]
async fn a_server_is_gone_after_sigkill() {
    let owner = Owner::start(&[]);
    assert!(answers(&owner.url).await);

    owner.signal("KILL");

    is_gone(&owner.url).await;
}

/// The supervisor is then about to answer an owner who is gone.
#[tokio::test]
async fn nothing_is_left_of_an_owner_killed_during_the_start() {
    let scratch = std::env::temp_dir().join(format!("killed-{}", std::process::id()));
    let bin = scratch.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let open_to_all = |path: &std::path::Path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    // Programs that are found, and an initdb that says that it began and waits to be let go.
    let (begun, go) = (scratch.join("begun"), scratch.join("go"));
    let wait = format!(
        "#!/bin/sh\ntouch '{}'\nuntil [ -e '{}' ]; do sleep 0.05; done\n",
        begun.display(),
        go.display()
    );
    for (name, text) in [
        ("initdb", wait.as_str()),
        ("pg_ctl", "#!/bin/sh\n"),
        ("postgres", "#!/bin/sh\n"),
    ] {
        std::fs::write(bin.join(name), text).unwrap();
        open_to_all(&bin.join(name));
    }
    open_to_all(&scratch);
    let set = [
        ("OUTBOX_DEV_POSTGRES", "local"),
        ("OUTBOX_POSTGRES_BIN", bin.to_str().unwrap()),
        ("TMPDIR", scratch.to_str().unwrap()),
    ];
    let mut owner = program(&set).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !begun.exists() {
        assert!(Instant::now() < deadline, "initdb never began");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    owner.kill().unwrap();
    owner.wait().unwrap();
    std::fs::write(&go, "").unwrap();

    let clusters = || {
        let names = std::fs::read_dir(&scratch)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("outbox-pg-"))
            .count()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while clusters() > 0 {
        assert!(
            Instant::now() < deadline,
            "the supervisor died before it cleaned up"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    std::fs::remove_dir_all(scratch).unwrap();
}

#[tokio::test]
async fn a_server_is_gone_after_a_panic() {
    let server = DevPostgres::start_own(ServerOptions::default()).await.unwrap();
    let url = server.url().to_owned();

    let panicked = tokio::spawn(async move {
        let _held = server;
        panic!("on purpose");
    });

    assert!(panicked.await.unwrap_err().is_panic());
    is_gone(&url).await;
}

#[tokio::test]
async fn nothing_is_left_of_a_start_that_was_dropped() {
    let server = DevPostgres::shared().await.unwrap();
    // Any server that is up in the end was not dropped: count those of this process's children.
    let before = leftovers();

    for patience_ms in [1, 30, 100, 300] {
        let start = DevPostgres::start_own(ServerOptions::default());
        let _too_slow = tokio::time::timeout(Duration::from_millis(patience_ms), start).await;
    }

    let deadline = Instant::now() + PATIENCE;
    while leftovers() > before {
        assert!(Instant::now() < deadline, "a dropped start left something");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(answers(server.url()).await);
}

/// Supervisors among our children; each owns one server.
fn leftovers() -> usize {
    let output = Command::new("ps")
        .args(["--ppid", &std::process::id().to_string(), "-o", "args="])
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout)
        .matches("outbox-dev-supervisor")
        .count()
}

#[tokio::test]
async fn a_way_that_fails_says_so_and_the_next_is_tried() {
    let dead = "postgres://nobody:secret@127.0.0.1:1/none";
    let mut command = program(&[("DATABASE_URL", dead)]);
    command
        .env_remove("OUTBOX_DEV_POSTGRES")
        .stdin(Stdio::null())
        .stderr(Stdio::piped());

    let output = command.output().unwrap();

    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("outbox-dev: no Postgres by way of url: postgres refused: "),
        "{errors}"
    );
    assert!(!errors.contains("secret"), "{errors}");
    assert!(output.status.success(), "{errors}");
    assert!(output.stdout.starts_with(b"postgres://postgres:"));
}

#[tokio::test]
async fn without_any_way_the_error_names_all_three() {
    let mut command = program(&[
        ("DOCKER_HOST", "unix:///nonexistent/docker.sock"),
        ("OUTBOX_POSTGRES_BIN", "/nonexistent/bin"),
    ]);
    command.env_remove("OUTBOX_DEV_POSTGRES").stderr(Stdio::piped());

    let mut child = command.spawn().unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();

    assert!(!child.wait().unwrap().success());
    for part in [
        "url: set DATABASE_URL",
        "docker: start a Docker engine",
        "local: install",
        "/nonexistent/bin",
    ] {
        assert!(errors.contains(part), "{part:?} is missing in {errors}");
    }
}

#[tokio::test]
async fn a_forced_way_that_fails_is_the_only_one_tried() {
    let set = [
        ("OUTBOX_DEV_POSTGRES", "local"),
        ("OUTBOX_POSTGRES_BIN", "/nonexistent/bin"),
    ];

    let output = program(&set).stderr(Stdio::piped()).output().unwrap();

    assert!(!output.status.success());
    assert!(!String::from_utf8_lossy(&output.stderr).contains("docker"));
}

#[tokio::test]
async fn an_own_server_is_never_the_one_given_by_url() {
    let server = DevPostgres::start_own(ServerOptions::default()).await.unwrap();

    assert_ne!(server.way(), Way::Url);
    assert_ne!(server.url(), DevPostgres::shared().await.unwrap().url());
}
