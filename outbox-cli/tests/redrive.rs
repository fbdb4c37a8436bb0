//! A redrive of very many events: a look beforehand, the question, progress, an interruption, and what the audit says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::process::Stdio;
use std::time::Duration;

use support::{MARKER, PASSWORD, World};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

const FAILED: i64 = 100_000;

async fn failed_events(world: &World) {
    let sql = format!(
        "INSERT INTO outbox.outbox (id, event_type, payload, status, class, retry_count, error, processed_at) \
         SELECT gen_random_uuid(), CASE WHEN n % 10 = 0 THEN 'OrderShipped' ELSE 'OrderPlaced' END, \
             '{{\"customer\": \"{MARKER}\"}}', 'failed', 'failed', 10, 'carrier API answers 503', clock_timestamp() \
         FROM generate_series(1, {FAILED}) AS n"
    );
    world.run(&sql).await;
}

/// The command on a terminal of its own, which shows what a person would see. Answers the question.
async fn on_a_terminal(world: &World, args: &str, answer: &str) -> Child {
    let line = format!("{} {args}", env!("CARGO_BIN_EXE_outbox"));
    let plain = world.command(&[], None);
    let mut command = Command::new("script");
    command
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .envs(
            plain
                .as_std()
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(answer.as_bytes()).await.unwrap();
    child
}

/// What it showed, once it has ended; and its exit code.
async fn shown(child: Child) -> (i32, String) {
    let output = child.wait_with_output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        !text.contains(PASSWORD) && !text.contains(MARKER),
        "a secret was told"
    );
    (output.status.code().unwrap(), text)
}

/// Presses Ctrl-C once some events are redriven.
async fn interrupt(world: &World, terminal: &mut Child) {
    while world.count("pending").await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let keyboard = terminal.stdin.as_mut().unwrap();
    keyboard.write_all(b"\x03").await.unwrap();
    keyboard.flush().await.unwrap();
    // Nothing more is typed, but the terminal stays open.
    terminal.wait().await.unwrap();
}

#[tokio::test]
async fn a_hundred_thousand_events_are_looked_at_redriven_interrupted_and_redriven_to_the_end() {
    let world = World::new().await;
    failed_events(&world).await;

    // What would happen: counts by type, and samples that can be looked at.
    let dry = world
        .outbox(&["redrive", "--error", "503", "--dry-run", "--json"])
        .await
        .ok();
    let dry: serde_json::Value = serde_json::from_str(&dry).unwrap();
    assert_eq!(dry["events"], FAILED);
    let types = dry["types"].as_array().unwrap();
    let counted: Vec<_> = types
        .iter()
        .map(|row| {
            (
                row["event_type"].as_str().unwrap(),
                row["events"].as_i64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        counted,
        [("OrderPlaced", FAILED / 10 * 9), ("OrderShipped", FAILED / 10)]
    );
    for sample in types.iter().flat_map(|row| row["samples"].as_array().unwrap()) {
        world.outbox(&["show", sample.as_str().unwrap()]).await.ok();
    }
    assert_eq!(world.count("failed").await, FAILED, "nothing was changed");

    // A person says no, then yes, sees how far it is, and loses patience.
    let (code, text) = shown(on_a_terminal(&world, "redrive --error 503 --reason mended", "n\n").await).await;
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("would redrive 100000 events") && text.contains("nothing was changed"),
        "{text}"
    );
    assert_eq!(world.count("failed").await, FAILED);
    let mut running = on_a_terminal(&world, "redrive --error 503 --reason mended --step 100", "y\n").await;
    interrupt(&world, &mut running).await;
    let (code, text) = shown(running).await;
    assert_eq!(code, 130, "{text}");
    assert!(text.contains("of 100,000 events"), "no progress: {text}");
    let (_, go_on) = text
        .rsplit_once("go on with: outbox redrive --action ")
        .expect(&text);
    let action = go_on.trim();
    let left = world.count("failed").await;
    let told = format!("interrupted after {} events", FAILED - left);
    assert!(text.contains(&told), "{left} left: {text}");
    assert!(0 < left && left < FAILED, "{left} of {FAILED} left");
    let audit = |what: &str| {
        format!(
            "SELECT count(*) FROM outbox.outbox_audit WHERE number = {action} AND action = 'redrive' AND actor = 'ada' \
             AND reason = 'mended' AND filter ->> 'error' = '503' AND {what}"
        )
    };
    let unfinished = audit(&format!("events = {} AND finished_at IS NULL", FAILED - left));
    assert_eq!(world.number(&unfinished).await, 1);

    // What failed meanwhile is not what was asked for.
    world
        .run(
            "INSERT INTO outbox.outbox (id, event_type, payload, status, class, error, processed_at) \
              VALUES (gen_random_uuid(), 'OrderPlaced', '1', 'failed', 'failed', '503 again', clock_timestamp())",
        )
        .await;
    let rest = world
        .outbox(&["redrive", "--action", action, "--json"])
        .await
        .ok();
    let rest: serde_json::Value = serde_json::from_str(&rest).unwrap();
    assert_eq!(
        (&rest["changed"], &rest["finished"]),
        (&left.into(), &true.into())
    );
    assert_eq!(
        (world.count("failed").await, world.count("pending").await),
        (1, FAILED)
    );
    let finished = audit(&format!("events = {FAILED} AND finished_at IS NOT NULL"));
    assert_eq!(world.number(&finished).await, 1);
    assert_eq!(
        world.number("SELECT count(*) FROM outbox.outbox_audit").await,
        1,
        "no trace of the look"
    );
    let fresh = "SELECT count(*) FROM outbox.outbox WHERE status = 'pending' AND retry_count = 0";
    assert_eq!(world.number(fresh).await, FAILED);
}
