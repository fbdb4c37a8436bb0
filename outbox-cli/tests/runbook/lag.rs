//! Lag climbs.

use std::time::Duration;

use outbox::{Context, HandlerError, Registry};

use crate::support::{OrderPlaced, World};
use crate::{found, told};

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
