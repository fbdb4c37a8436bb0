//! Rows drain to completed, but nothing happens downstream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use outbox::{Context, HandlerError, Registry};

use crate::support::{OrderPlaced, OrderShipped, World};
use crate::{found, told};

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
            "INSERT INTO outbox.outbox (id, event_type, payload, status, class, error, processed_at) \
             VALUES (gen_random_uuid(), 'OrderShipped', '1', 'failed', 'failed', 'the order was reopened', clock_timestamp())",
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
