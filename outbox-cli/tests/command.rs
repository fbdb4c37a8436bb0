//! The command itself: exit codes, interruption, and what it never tells.

mod support;

use std::process::Stdio;
use std::time::Duration;

use support::{PASSWORD, World};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

#[tokio::test]
async fn exit_codes_are_as_documented() {
    let world = World::new().await;
    world.create_role("reader").await;
    let reader = world.role("reader");
    world.outbox(&["roles", "--reader", &reader]).await.ok();

    let nobody = "00000000-0000-0000-0000-000000000001";
    for (args, code) in [
        (vec!["status"], 0),
        (vec!["redrive"], 2),
        (vec!["pause"], 2),
        (vec!["prune", "--older-than", "soon"], 2),
        (vec!["show", nobody], 5),
        (vec!["redrive", "--action", "99"], 5),
        (vec!["prune", "--older-than", "7d"], 6),
        (vec!["--schema", "elsewhere", "status"], 4),
    ] {
        let said = world.outbox(&args).await;
        assert_eq!(said.code, code, "{args:?}: {said:?}");
    }
    assert_eq!(world.outbox_as(Some("reader"), &["status"]).await.code, 4);
    assert_eq!(world.outbox_as(Some("reader"), &["doctor"]).await.code, 1);
    world.drop_role("reader").await;
}

#[tokio::test]
async fn an_unreachable_database_is_said_at_once_and_without_the_url() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    let url = format!("postgres://ada:{PASSWORD}@127.0.0.1:1/none");
    let output = command
        .arg("status")
        .env("JOBS_DB_URL", url)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();

    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("cannot be reached"), "{said}");
    assert!(!said.contains(PASSWORD), "{said}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_variable_that_is_no_text_is_named_and_never_replaced_by_another() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let broken = [b"postgres://ada:", PASSWORD.as_bytes(), b"@\xff"].concat();
    for name in ["JOBS_DB_URL", "OUTBOX_SCHEMA", "OUTBOX_TABLE", "OUTBOX_ACTOR"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        let output = command
            .arg("status")
            .env("DATABASE_URL", "postgres://ada@127.0.0.1:1/none")
            .env(name, OsStr::from_bytes(&broken))
            .output()
            .await
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();

        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(&format!("{name} is not UTF-8")), "{said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
}

#[tokio::test]
async fn the_url_may_come_from_a_file_but_a_bad_one_is_not_quoted() {
    let world = World::new().await;
    let path = std::env::temp_dir().join(format!("{}.url", world.database.name()));
    let file = path.to_str().unwrap();

    std::fs::write(&path, format!("{}\n", world.url(None))).unwrap();
    let good = world.outbox(&["status", "--url-file", file]).await;
    good.ok();
    // Of the last two the client would take host and port, and knock there.
    for text in [
        "postgres//",
        "ada:secret@127.0.0.1:1/none?password=",
        "mysql://127.0.0.1:1/none?password=",
    ] {
        std::fs::write(&path, format!("{text}{PASSWORD}")).unwrap();
        let bad = world.outbox(&["status", "--url-file", file]).await;
        assert_eq!(bad.code, 2, "{bad:?}");
        assert!(
            bad.err
                .contains("it takes postgres://USER:PASSWORD@HOST/DATABASE"),
            "{bad:?}"
        );
        assert!(!bad.err.contains(PASSWORD), "{bad:?}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn a_watch_ends_when_nobody_reads_it_any_more() {
    let world = World::new().await;
    let mut command = world.command(&["status", "--watch", "--every", "100ms"], None);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut read = watching.stdout.take().unwrap();
    read.read_u8().await.unwrap();

    drop(read);

    let ended = tokio::time::timeout(Duration::from_secs(30), watching.wait()).await;
    assert!(ended.unwrap().unwrap().success());
}

#[cfg(unix)]
#[tokio::test]
async fn a_watch_ends_by_an_interrupt_though_its_query_waits_for_a_lock() {
    let world = World::new().await;
    let mut command = world.command(&["status", "--watch", "--every", "100ms"], None);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut read = watching.stdout.take().unwrap();
    read.read_u8().await.unwrap();
    let mut keeper = world.database.pool().begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE outbox.outbox")
        .execute(&mut *keeper)
        .await
        .unwrap();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox-cli' \
                 AND datname = current_database() AND wait_event_type = 'Lock'";
    while world.number(waits).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    let pid = watching.id().unwrap().to_string();
    Command::new("kill").args(["-INT", &pid]).status().await.unwrap();

    let ended = tokio::time::timeout(Duration::from_secs(30), watching.wait()).await;
    assert!(ended.unwrap().unwrap().success());
    keeper.rollback().await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn somebody_is_recorded_though_no_variable_says_who_it_is() {
    let world = World::new().await;
    let mut command = world.command(&["pause", "--type", "OrderPlaced"], None);
    for name in ["OUTBOX_ACTOR", "USER", "LOGNAME"] {
        command.env_remove(name);
    }
    assert!(command.output().await.unwrap().status.success());

    let actor = world.text("SELECT actor FROM outbox.outbox_audit").await;
    assert!(actor.starts_with("user "), "{actor}");
}

#[tokio::test]
async fn what_the_server_says_is_told_without_a_line_of_its_source() {
    let world = World::new().await;

    let said = world.outbox(&["roles", "--relay", "nobody-of-that-name"]).await;

    assert_eq!(said.code, 4);
    assert!(
        said.err
            .trim_end()
            .ends_with("role \"nobody-of-that-name\" does not exist"),
        "{}",
        said.err
    );
}

#[tokio::test]
async fn a_type_can_be_paused_and_resumed_and_settled_events_pruned() {
    let world = World::new().await;
    world.publish(3).await;
    world
        .outbox(&["pause", "--type", "OrderPlaced", "--reason", "look"])
        .await
        .ok();
    let relay = world
        .start(outbox::Registry::new().on("shipping", support::ship), None, 10)
        .await;

    let status = world.outbox(&["status"]).await.ok();
    assert!(status.contains("paused"), "{status}");
    world.outbox(&["resume", "--type", "OrderPlaced"]).await.ok();

    world.until("completed", 3).await;
    relay.shutdown().await.unwrap();
    world.outbox(&["prune", "--older-than", "0s", "--yes"]).await.ok();
    assert_eq!(world.count("completed").await, 0);
}

#[tokio::test]
async fn migrations_come_as_sql_and_completions_for_every_shell() {
    let world = World::new().await;

    let sql = world.outbox(&["migrate", "--sql", "--schema", "shop"]).await.ok();
    assert!(sql.contains("CREATE TABLE \"shop\".\"outbox\""), "{sql}");
    world.run(&sql).await;
    world.outbox(&["status", "--schema", "shop"]).await.ok();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(
            world
                .outbox(&["completions", shell])
                .await
                .ok()
                .contains("redrive"),
            "{shell}"
        );
    }
}
