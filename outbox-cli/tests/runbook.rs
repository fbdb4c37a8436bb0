//! The failure modes of docs/runbook.md: each provoked, found and mended with the real command, in the steps told there.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use outbox::{Context, HandlerError, PgSource, Registry, StartError};
use support::{OrderPlaced, OrderShipped, World, ship};

fn shipping() -> Registry {
    Registry::new().on("shipping", ship)
}

#[tokio::test]
async fn rows_stay_pending_because_no_relay_runs() {
    let world = World::new().await;
    world.publish(3).await;

    let doctor = world.outbox(&["doctor", "--json"]).await;
    assert_eq!(doctor.code, 1);
    let (verdict, text) = doctor.check("relay");
    assert_eq!(verdict, "wrong");
    assert!(text.contains("start the relay"), "{text}");

    let relay = world.start(shipping(), None, 10).await;

    world.until("completed", 3).await;
    let doctor = world.outbox(&["doctor", "--json"]).await;
    assert_eq!(doctor.check("relay").0, "ok");
    doctor.ok();
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
    assert_eq!(world.outbox_as(Some("jobs"), &["status"]).await.code, 4);
    let doctor = world.outbox_as(Some("jobs"), &["doctor", "--json"]).await;
    assert_eq!(doctor.code, 1);
    let (verdict, text) = doctor.check("visibility");
    assert_eq!(verdict, "wrong");
    assert!(text.contains(&format!("outbox roles --relay {jobs}")), "{text}");

    world.outbox(&["roles", "--relay", &jobs]).await.ok();
    let relay = world.start(shipping(), Some("jobs"), 10).await;

    world.until("completed", 1).await;
    world.outbox_as(Some("jobs"), &["doctor"]).await.ok();
    relay.shutdown().await.unwrap();
    world.drop_role("jobs").await;
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

    let doctor = world
        .outbox(&["doctor", "--json", "--handled", "OrderShipped"])
        .await;
    assert_eq!(doctor.code, 1);
    let (verdict, text) = doctor.check("handlers");
    assert_eq!(verdict, "wrong");
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
    world
        .outbox(&["reopen", "--type", "OrderPlaced", "--newer-than", "1h", "--yes"])
        .await
        .ok();
    world
        .outbox(&["redrive", "--error", "reopened", "--yes"])
        .await
        .ok();

    world.until("completed", 5).await;
    assert_eq!(shipped.load(Ordering::Relaxed), 5);
    world
        .outbox(&["doctor", "--handled", "OrderShipped,OrderPlaced"])
        .await
        .ok();
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

    let doctor = world.outbox(&["doctor", "--json"]).await;
    assert_eq!(doctor.code, 1);
    let (verdict, text) = doctor.check("failed");
    assert_eq!(verdict, "wrong");
    assert!(
        text.contains("7 dead letters") && text.contains("carrier API answers 503"),
        "{text}"
    );
    let listed = world.outbox(&["list", "--status", "failed", "--json"]).await.ok();
    let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed.len(), 7);
    let shown = world
        .outbox(&["show", listed[0]["id"].as_str().unwrap()])
        .await
        .ok();
    assert!(shown.contains("carrier API answers 503"), "{shown}");

    broken.store(false, Ordering::Relaxed);
    let dry = world
        .outbox(&["redrive", "--error", "503", "--dry-run"])
        .await
        .ok();
    assert!(dry.contains("would redrive 7 events"), "{dry}");
    assert_eq!(world.count("failed").await, 7);
    assert_eq!(
        world.outbox(&["redrive", "--error", "503"]).await.code,
        6,
        "asked nobody"
    );
    world
        .outbox(&[
            "redrive",
            "--error",
            "503",
            "--yes",
            "--reason",
            "carrier is back",
        ])
        .await
        .ok();

    world.until("completed", 7).await;
    let audited = "SELECT count(*) FROM outbox.outbox_audit WHERE action = 'redrive' AND actor = 'ada' \
                   AND reason = 'carrier is back' AND filter ->> 'error' = '503' AND events = 7 AND finished_at IS NOT NULL";
    assert_eq!(world.number(audited).await, 1);
    world.outbox(&["doctor"]).await.ok();
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
            let doctor = world.outbox(&["doctor", "--json", "--max-lag", "1s"]).await;
            let (verdict, text) = doctor.check("lag");
            if verdict == "wrong" {
                assert_eq!(doctor.code, 1);
                assert!(text.contains("raise OUTBOX_CONCURRENCY"), "{text}");
                return;
            }
        }
    })
    .await
    .unwrap();
    let status: serde_json::Value =
        serde_json::from_str(&world.outbox(&["status", "--json"]).await.ok()).unwrap();
    assert!(status["oldest_seconds"].as_f64().unwrap() > 1.0, "{status}");

    relay.shutdown().await.unwrap();
    let relay = world.start(slow(wait), None, 100).await;

    world.until("completed", 400).await;
    world.outbox(&["doctor", "--max-lag", "1s"]).await.ok();
    relay.shutdown().await.unwrap();
}
