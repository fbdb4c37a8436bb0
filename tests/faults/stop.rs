//! Stopping in bounded time, whatever handlers do.

use std::time::Duration;

use outbox::{Relay, RelayHandle};
use tokio::time::Instant;

use crate::world::{Seen, World, handled, many, nonzero, numbered, relay};

const GRACE: Duration = Duration::from_secs(1);

/// How long the relay took to stop.
async fn stop(running: RelayHandle) -> (Duration, outbox::Report) {
    let began = Instant::now();
    let report = running.shutdown().await.unwrap();
    (began.elapsed(), report)
}

async fn until_in_flight(running: &RelayHandle, events: usize) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while running.health().in_flight() < events {
        assert!(
            Instant::now() < deadline,
            "{} in flight",
            running.health().in_flight()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn handlers_that_end_within_the_grace_are_recorded() {
    let world = World::new().await;
    let dispatcher = handled(|_, _| async {
        tokio::time::sleep(GRACE / 2).await;
        Ok(())
    });
    world.publish_all(many(50)).await;
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .concurrency(nonzero(10))
        .build()
        .unwrap()
        .spawn();
    until_in_flight(&running, 10).await;

    let (took, report) = stop(running).await;

    assert!(took < GRACE + Relay::STOP_SLACK, "{took:?}");
    assert_eq!((report.lost, report.left_claimed, report.stuck), (0, 0, 0));
    assert_eq!(world.leases().await, 0);
    let completed = world.count("status = 'completed'").await;
    assert!(completed >= 10, "{completed}");
    assert_eq!(report.completed as i64, completed);
    // The rest is due again at once, and nothing was charged to it.
    assert_eq!(
        world
            .count("status = 'pending' AND retry_count = 0 AND claim_count = 0")
            .await,
        50 - completed
    );
    let source = world.source().start().await.unwrap();
    let next = relay(source, Seen::default().dispatcher())
        .build()
        .unwrap()
        .spawn();
    world.until("status = 'completed'", 50).await;
    next.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_handler_that_heeds_its_cancellation_ends_at_the_end_of_the_grace() {
    let world = World::new().await;
    let dispatcher = handled(|_, context: outbox::Context| async move {
        context.cancelled().cancelled().await;
        Ok(())
    });
    world.publish(numbered(0)).await;
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .build()
        .unwrap()
        .spawn();
    until_in_flight(&running, 1).await;

    let (took, _) = stop(running).await;

    assert!(took >= GRACE && took < GRACE + Relay::STOP_SLACK, "{took:?}");
    // It was cancelled and said that it is done all the same: so it is.
    assert_eq!(world.count("status = 'completed'").await, 1);
    assert_eq!(world.leases().await, 0);
}

#[tokio::test]
async fn a_handler_that_waits_for_ever_is_dropped_and_its_event_is_due_at_once() {
    let world = World::new().await;
    let dispatcher = handled(|_, _| std::future::pending());
    world.publish_all(many(5)).await;
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .build()
        .unwrap()
        .spawn();
    until_in_flight(&running, 5).await;

    let (took, report) = stop(running).await;

    assert!(took < GRACE + Relay::STOP_SLACK, "{took:?}");
    assert_eq!((report.released, report.stuck), (5, 0));
    assert_eq!(world.count("status = 'pending' AND retry_count = 0").await, 5);
    assert_eq!(world.leases().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_its_thread_does_not_hold_up_the_stop() {
    let world = World::new().await;
    let dispatcher = handled(|event, _| async move {
        if event.n == 0 {
            std::thread::sleep(Duration::from_secs(12));
        }
        Ok(())
    });
    world.publish_all(many(20)).await;
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .build()
        .unwrap()
        .spawn();
    world.until("status = 'completed'", 19).await;

    let (took, report) = stop(running).await;

    assert!(took < GRACE + Relay::STOP_SLACK, "{took:?}");
    assert_eq!((report.completed, report.stuck), (19, 1));
    assert_eq!(world.count("status = 'pending' AND retry_count = 0").await, 1);
    assert_eq!(world.leases().await, 0);
}

#[tokio::test]
async fn a_second_stop_signal_ends_the_grace_at_once() {
    let world = World::new().await;
    let dispatcher = handled(|_, _| std::future::pending());
    world.publish(numbered(0)).await;
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .shutdown_grace(Duration::from_secs(60))
        .build()
        .unwrap()
        .spawn();
    until_in_flight(&running, 1).await;

    let began = Instant::now();
    running.stop();
    running.stop();
    running.join().await.unwrap();

    assert!(began.elapsed() < Relay::STOP_SLACK, "{:?}", began.elapsed());
    assert_eq!(world.leases().await, 0);
    assert_eq!(world.count("status = 'pending' AND retry_count = 0").await, 1);
}
