//! Rows land in failed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox::{Context, HandlerError, Registry};

use crate::support::{OrderPlaced, World};
use crate::{found, told};

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
