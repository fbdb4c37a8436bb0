//! Behind pgbouncer in transaction mode: every statement may meet another session.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outbox::PgSource;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::time::Instant;

use crate::world::{Seen, World, handled, many, nonzero, numbered, relay};

/// A pgbouncer in front of the server, gone when dropped.
struct Pooler {
    process: Child,
    options: PgConnectOptions,
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

async fn pooler(world: &World) -> Pooler {
    let direct = world.database.connect_options();
    let url = world.database.url();
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
    let options = direct
        .host("127.0.0.1")
        .port(port)
        .statement_cache_capacity(0)
        .extra_float_digits(None);
    let deadline = Instant::now() + Duration::from_secs(20);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "pgbouncer does not answer");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Pooler {
        process,
        options,
        _folder: folder,
    }
}

#[tokio::test]
#[ignore = "needs the program pgbouncer; .ci/run installs it and runs this"]
async fn publishing_and_relaying_work_behind_a_pooler_in_transaction_mode() {
    let world = World::new().await;
    let pooler = pooler(&world).await;
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .connect_with(pooler.options.clone())
        .await
        .unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let dispatcher = handled(move |event, context: outbox::Context| {
        let seen = noted.clone();
        async move {
            if event.n % 5 == 0 && context.attempt() == 1 {
                return Err(outbox::HandlerError::retry("once more"));
            }
            tokio::time::sleep(Duration::from_millis(event.n % 20)).await;
            seen.add(event.n);
            Ok(())
        }
    });
    let mut relays = Vec::new();
    for _ in 0..3 {
        let source = PgSource::builder(pooler.options.clone())
            .pooler()
            .start()
            .await
            .unwrap();
        let retry = outbox::RetryPolicy::fixed(nonzero(3), Duration::from_millis(50));
        relays.push(
            relay(source, dispatcher.clone())
                .retry(retry)
                .build()
                .unwrap()
                .spawn(),
        );
    }

    let publishers = (0..4_u64).map(|publisher| {
        let pool = pool.clone();
        let one = outbox::PgPublisher::new(&outbox::Names::default()).pooler();
        tokio::spawn(async move {
            for n in 0..100 {
                let mut transaction = pool.begin().await.unwrap();
                one.publish(&mut transaction, numbered(publisher * 100 + n))
                    .await
                    .unwrap();
                transaction.commit().await.unwrap();
            }
        })
    });
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
    let all = many(400).len() as i64;
    world.until("status = 'completed'", all).await;

    for running in relays {
        let report = running.shutdown().await.unwrap();
        assert_eq!(report.lost, 0, "{report:?}");
    }
    assert_eq!(seen.sorted(), (0..400).collect::<Vec<_>>());
    assert_eq!(world.leases().await, 0);
    world.until_clean().await;
}
