//! The failure modes of docs/runbook.md: each provoked, found and mended with the real command, in the steps told there.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use outbox::{Context, HandlerError, PgSource, Registry, StartError};
use sqlx::{Connection, PgConnection};
use support::{OrderPlaced, OrderShipped, Said, World, ship};

const RUNBOOK: &str = include_str!("../../docs/runbook.md");

/// What the runbook tells to type, without the words after it.
fn lines_to_type() -> impl Iterator<Item = &'static str> {
    let plain = |line: &'static str| line.split(" #").next().unwrap_or(line).trim();
    RUNBOOK
        .lines()
        .map(plain)
        .filter(|line| line.starts_with("outbox "))
}

/// Types a line of the runbook as somebody on call would, with what stands for its examples. Confirmed where that is asked.
async fn told(world: &World, part: Option<&str>, line: &str, filled: &[(&str, &str)]) -> Said {
    assert!(
        lines_to_type().any(|told| told == line),
        "the runbook does not tell: {line}"
    );
    let line = filled.iter().fold(line.to_owned(), |line, (example, value)| {
        line.replace(example, value)
    });
    let quoted = line.split('"').enumerate();
    let mut words: Vec<&str> = quoted
        .flat_map(|(n, text)| match n % 2 {
            0 => text.split_whitespace().collect(),
            _ => vec![text],
        })
        .skip(1)
        .collect();
    if ["redrive", "reopen"].contains(&words[0]) && !words.contains(&"--dry-run") {
        words.push("--yes");
    }
    world.outbox_as(part, &words).await
}

/// What `outbox doctor` says to a check: evidence and remedy.
fn found(doctor: &Said, finding: &str) -> String {
    let (verdict, name) = finding.split_once(' ').unwrap_or_default();
    let mut lines = doctor.out.lines();
    let fits = |line: &&str| {
        let said = line.strip_prefix(verdict).map(str::trim_start);
        said.is_some_and(|said| said.starts_with(name))
    };
    let line = lines
        .find(fits)
        .unwrap_or_else(|| panic!("no {finding} in {}{}", doctor.out, doctor.err));
    assert_eq!(
        doctor.code,
        i32::from(doctor.out.contains("\nWRONG ") || doctor.out.starts_with("WRONG "))
    );
    format!("{line} {}", lines.next().unwrap_or_default())
}

#[test]
fn every_command_and_every_finding_of_the_runbook_is_played_through() {
    let here = include_str!("runbook.rs");
    let lines: Vec<&str> = lines_to_type().collect();
    let findings: Vec<&str> = RUNBOOK
        .split('`')
        .filter(|quoted| quoted.starts_with("WRONG ") || quoted.starts_with("look "))
        .collect();

    assert!(lines.len() > 9 && findings.len() > 7, "{lines:?} {findings:?}");
    for told in lines.iter().chain(&findings) {
        let played = format!("\"{}\"", told.replace('"', "\\\""));
        assert!(here.contains(&played), "nothing plays {played}");
    }
}

fn shipping() -> Registry {
    Registry::new().on("shipping", ship)
}

#[tokio::test]
async fn rows_stay_pending_because_no_relay_runs() {
    let world = World::new().await;
    world.publish(3).await;
    assert!(world.figure("outbox_oldest_pending_seconds", "").await > 0.0);
    assert_eq!(world.figure("dispatcher_events_total", "").await, 0.0);

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG relay");
    assert!(text.contains("start the relay"), "{text}");
    let status = told(&world, None, "outbox status", &[]).await.ok();
    assert!(status.contains("pending"), "{status}");

    let relay = world.start(shipping(), None, 10).await;

    world.until("completed", 3).await;
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok relay");
    doctor.ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_stay_pending_because_the_relay_was_killed() {
    let world = World::new().await;
    world.publish(3).await;
    // What it held when it was killed, a minute later.
    let claim = "SELECT FROM outbox.outbox_claim(gen_random_uuid(), 1, 2, 1000000, interval '30 s', '{}')";
    world.run(claim).await;
    world
        .run("UPDATE outbox.outbox_lease SET until = until - interval '90 s'")
        .await;

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "WRONG claims");
    let text = found(&doctor, "WRONG relay");
    assert!(text.contains("start the relay"), "{text}");

    let relay = world.start(shipping(), None, 10).await;
    world.until("completed", 3).await;
    told(&world, None, "outbox doctor", &[]).await.ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_stay_pending_because_a_session_keeps_the_claim_lock() {
    let world = World::new().await;
    let mut keeper = world.database.pool().begin().await.unwrap();
    let lock = "SELECT pg_backend_pid() FROM pg_advisory_xact_lock(outbox.outbox_lock_number(1))";
    let pid: i32 = sqlx::query_scalar(lock).fetch_one(&mut *keeper).await.unwrap();

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG claim lock");
    assert!(text.contains(&format!("pg_terminate_backend({pid})")), "{text}");

    keeper.rollback().await.unwrap();
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok claim lock");
}

#[tokio::test]
async fn rows_stay_pending_because_a_session_keeps_the_tables() {
    let world = World::new().await;
    world.publish(3).await;
    let mut keeper = world.database.pool().begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut *keeper)
        .await
        .unwrap();
    sqlx::raw_sql("LOCK TABLE outbox.outbox")
        .execute(&mut *keeper)
        .await
        .unwrap();

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG table lock");
    assert!(text.contains(&format!("pg_terminate_backend({pid})")), "{text}");

    keeper.rollback().await.unwrap();
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok table lock");
}

#[tokio::test]
async fn rows_stay_pending_because_the_relay_that_is_connected_takes_none() {
    let world = World::new().await;
    world.publish(3).await;
    // One that hangs, or that is another outbox's.
    let options = world.database.connect_options().application_name("outbox-relay");
    let hanging = PgConnection::connect_with(&options).await.unwrap();

    let limit = [("30s", "0s")];
    let doctor = told(&world, None, "outbox doctor --max-lag 30s", &limit).await;
    let text = found(&doctor, "WRONG lag");
    assert!(
        text.contains("holds no claim") && text.contains("outbox_poll_failed"),
        "{text}"
    );

    hanging.close().await.unwrap();
    let relay = world.start(shipping(), None, 10).await;
    world.until("completed", 3).await;
    told(&world, None, "outbox doctor --max-lag 30s", &limit)
        .await
        .ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_stay_pending_because_row_security_hides_them_from_the_relay() {
    let world = World::new().await;
    world.create_role("jobs").await;
    let jobs = world.role("jobs");
    world
        .outbox(&["roles", "--relay", &jobs, "--tenants", "on"])
        .await
        .ok();
    world.run("DROP POLICY outbox_relay ON outbox.outbox").await;
    world
        .run("BEGIN; SET LOCAL app.current_tenant = 'acme'; \
              INSERT INTO outbox.outbox (id, event_type, payload) VALUES (gen_random_uuid(), 'OrderPlaced', '{\"customer\": \"personal-4711\"}'); COMMIT")
        .await;

    // The relay refuses to run blind, and so does the command.
    let options = world.url(Some("jobs")).parse().unwrap();
    let refused = PgSource::builder(options).start().await.unwrap_err();
    assert!(matches!(refused, StartError::Blind { .. }), "{refused}");
    assert_eq!(told(&world, Some("jobs"), "outbox status", &[]).await.code, 4);
    let doctor = told(&world, Some("jobs"), "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG visibility");
    assert!(text.contains(&format!("outbox roles --relay {jobs}")), "{text}");

    told(&world, None, "outbox roles --relay jobs", &[("jobs", &jobs)])
        .await
        .ok();
    let relay = world.start(shipping(), Some("jobs"), 10).await;

    world.until("completed", 1).await;
    told(&world, Some("jobs"), "outbox doctor", &[]).await.ok();
    relay.shutdown().await.unwrap();
    world.drop_role("jobs").await;
}

#[tokio::test]
async fn rows_stay_pending_because_the_relay_may_not_do_its_work() {
    let world = World::new().await;
    world.create_role("jobs").await;
    let jobs = world.role("jobs");
    world.publish(3).await;

    let options = world.url(Some("jobs")).parse().unwrap();
    let refused = PgSource::builder(options).start().await.unwrap_err();
    assert!(matches!(refused, StartError::Rights { .. }), "{refused}");
    let doctor = told(&world, Some("jobs"), "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG rights");
    assert!(text.contains(&format!("outbox roles --relay {jobs}")), "{text}");

    told(&world, None, "outbox roles --relay jobs", &[("jobs", &jobs)])
        .await
        .ok();
    let relay = world.start(shipping(), Some("jobs"), 10).await;

    world.until("completed", 3).await;
    told(&world, Some("jobs"), "outbox doctor", &[]).await.ok();
    relay.shutdown().await.unwrap();
    world.drop_role("jobs").await;
}

#[tokio::test]
async fn rows_stay_pending_because_their_type_is_paused() {
    let world = World::new().await;
    world.outbox(&["pause", "--type", "OrderPlaced"]).await.ok();
    let relay = world.start(shipping(), None, 10).await;
    world.publish(3).await;

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "look blocks");
    assert!(
        text.contains("OrderPlaced") && text.contains("outbox resume"),
        "{text}"
    );
    assert_eq!(world.count("pending").await, 3);

    told(
        &world,
        None,
        "outbox resume --type TYPE",
        &[("TYPE", "OrderPlaced")],
    )
    .await
    .ok();

    world.until("completed", 3).await;
    let doctor = told(&world, None, "outbox doctor", &[]).await;
    found(&doctor, "ok blocks");
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_drain_to_completed_and_nothing_happens_downstream() {
    let world = World::new().await;
    // The module that ships orders was not wired in.
    let other = Registry::new().on("mail", async |_: OrderShipped, _: Context| Ok(()));
    let relay = world.start(other, None, 10).await;
    world.publish(5).await;
    world.until("completed", 5).await;
    relay.shutdown().await.unwrap();

    let unhandled = world.figure("dispatcher_events_total", "outcome=\"unhandled\"");
    assert_eq!(unhandled.await, 5.0);
    let handled = "outbox doctor --handled OrderPaid,OrderShipped";
    let doctor = told(&world, None, handled, &[]).await;
    let text = found(&doctor, "WRONG handlers");
    assert!(text.contains("OrderPlaced (5 of 5 completed)"), "{text}");

    let shipped = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&shipped);
    let wired = Registry::new().on("shipping", move |_: OrderPlaced, _: Context| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<(), HandlerError>(())
        }
    });
    let relay = world.start(wired, None, 10).await;
    let dry = "outbox reopen --type OrderPlaced --newer-than 2h --dry-run";
    let dry = told(&world, None, dry, &[]).await.ok();
    assert!(dry.contains('5'), "{dry}");
    assert_eq!(world.count("completed").await, 5);
    let reopen = "outbox reopen --type OrderPlaced --newer-than 2h";
    told(&world, None, reopen, &[]).await.ok();
    // Another failure may speak of reopening, too.
    world
        .run(
            "INSERT INTO outbox.outbox (id, event_type, payload, status, error, processed_at) \
             VALUES (gen_random_uuid(), 'OrderShipped', '1', 'failed', 'the order was reopened', clock_timestamp())",
        )
        .await;
    let redrive = "outbox redrive --type OrderPlaced --error reopened";
    told(&world, None, redrive, &[]).await.ok();

    world.until("completed", 5).await;
    assert_eq!(world.count("failed").await, 1);
    world
        .run("DELETE FROM outbox.outbox WHERE status = 'failed'")
        .await;
    assert_eq!(shipped.load(Ordering::Relaxed), 5);
    let now = [("OrderPaid", "OrderPlaced")];
    told(&world, None, handled, &now).await.ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn rows_land_in_failed() {
    let world = World::new().await;
    let broken = Arc::new(AtomicBool::new(true));
    let state = Arc::clone(&broken);
    let registry = Registry::new().on("shipping", move |_: OrderPlaced, _: Context| {
        let broken = state.load(Ordering::Relaxed);
        async move {
            match broken {
                true => Err(HandlerError::retry("carrier API answers 503")),
                false => Ok(()),
            }
        }
    });
    let relay = world.start(registry, None, 10).await;
    world.publish(7).await;
    world.until("failed", 7).await;
    assert_eq!(world.figure("outbox_failed_events", "").await, 7.0);

    let doctor = told(&world, None, "outbox doctor", &[]).await;
    let text = found(&doctor, "WRONG failed");
    assert!(
        text.contains("7 dead letters") && text.contains("carrier API answers 503"),
        "{text}"
    );
    let listed = told(&world, None, "outbox list --status failed", &[]).await.ok();
    assert_eq!(listed.matches("carrier API answers 503").count(), 7, "{listed}");
    let id = world.text("SELECT min(id::text) FROM outbox.outbox").await;
    assert!(listed.contains(&id), "{listed}");
    let shown = told(&world, None, "outbox show 0197…", &[("0197…", &id)])
        .await
        .ok();
    assert!(shown.contains("carrier API answers 503"), "{shown}");

    broken.store(false, Ordering::Relaxed);
    let dry = "outbox redrive --type OrderPlaced --error 503 --dry-run";
    let dry = told(&world, None, dry, &[]).await.ok();
    assert!(dry.contains("would redrive 7 events"), "{dry}");
    assert_eq!(world.count("failed").await, 7);
    let asked_nobody = world.outbox(&["redrive", "--error", "503"]).await;
    assert_eq!(asked_nobody.code, 6);
    // One of them will never succeed.
    world.outbox(&["discard", &id, "--yes"]).await.ok();
    let redrive = "outbox redrive --type OrderPlaced --error 503 --reason \"carrier is back\"";
    told(&world, None, redrive, &[]).await.ok();

    world.until("completed", 6).await;
    let audited = "SELECT count(*) FROM outbox.outbox_audit WHERE action = 'redrive' AND actor = 'ada' \
                   AND reason = 'carrier is back' AND filter ->> 'error' = '503' AND events = 6 AND finished_at IS NOT NULL";
    assert_eq!(world.number(audited).await, 1);
    assert_eq!(world.figure("outbox_failed_events", "").await, 0.0);
    let discarded =
        "SELECT count(*) FROM outbox.outbox_audit WHERE action = 'discard' AND actor = 'ada' AND events = 1";
    assert_eq!(world.number(discarded).await, 1);
    told(&world, None, "outbox doctor", &[]).await.ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn dispatch_lag_climbs() {
    let world = World::new().await;
    let slow = |wait| {
        Registry::new().on("shipping", move |_: OrderPlaced, _: Context| async move {
            tokio::time::sleep(wait).await;
            Ok::<(), HandlerError>(())
        })
    };
    let wait = Duration::from_millis(200);
    let relay = world.start(slow(wait), None, 1).await;
    world.publish(400).await;
    // One at a time, all of them take 80 s: the oldest that waits grows older than a second meanwhile.
    tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            let doctor = told(&world, None, "outbox doctor --max-lag 30s", &[("30s", "1s")]).await;
            if doctor.code == 1 {
                let text = found(&doctor, "WRONG lag");
                assert!(text.contains("raise OUTBOX_CONCURRENCY"), "{text}");
                return;
            }
        }
    })
    .await
    .unwrap();
    assert!(world.figure("outbox_oldest_pending_seconds", "").await > 1.0);
    assert!(world.figure("outbox_lag_seconds_count", "").await > 0.0);
    let status: serde_json::Value =
        serde_json::from_str(&world.outbox(&["status", "--json"]).await.ok()).unwrap();
    assert!(status["oldest_seconds"].as_f64().unwrap() > 1.0, "{status}");

    relay.shutdown().await.unwrap();
    let relay = world.start(slow(wait), None, 100).await;

    world.until("completed", 400).await;
    told(&world, None, "outbox doctor --max-lag 30s", &[("30s", "1s")])
        .await
        .ok();
    relay.shutdown().await.unwrap();
}

#[tokio::test]
async fn what_makes_every_claim_slower_is_found() {
    let world = World::new().await;
    let mut old = world.database.pool().begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid() FROM txid_current()")
        .fetch_one(&mut *old)
        .await
        .unwrap();
    world
        .run("ALTER TABLE outbox.outbox SET (autovacuum_enabled = false)")
        .await;

    // Transactions of other tests are on the same server, and shorter.
    let held_back = format!("backend {pid} ");
    let look = ["doctor", "--max-transaction", "1s"];
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let mut doctor = world.outbox(&look).await;
    while !doctor.out.contains(&held_back) {
        assert!(tokio::time::Instant::now() < deadline, "{}", doctor.out);
        doctor = world.outbox(&look).await;
    }
    let text = found(&doctor, "look snapshots");
    assert!(
        text.contains(&held_back) && text.contains("pg_terminate_backend"),
        "{text}"
    );
    let text = found(&doctor, "WRONG autovacuum");
    assert!(text.contains("RESET (autovacuum_enabled)"), "{text}");

    old.rollback().await.unwrap();
    world
        .run("ALTER TABLE outbox.outbox RESET (autovacuum_enabled)")
        .await;
    let doctor = world.outbox(&look).await;
    assert!(!doctor.out.contains(&held_back), "{}", doctor.out);
    found(&doctor, "ok autovacuum");
}
