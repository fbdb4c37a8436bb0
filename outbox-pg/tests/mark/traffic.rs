//! Many publishers and relays: the rule loses nothing, and a naive one does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::{Outcome, Source};
use sqlx::{Connection, Row};
use tokio::time::Instant;

use crate::support::{World, claim, event, outcome};

/// Moves the mark at once to where nothing is pending now: what the exact rule is there to replace. Must lose events.
const NAIVE: &str = "SELECT setval('outbox.outbox_mark', greatest(
    (SELECT last_value FROM outbox.outbox_mark),
    coalesce((SELECT min(seq) FROM outbox.outbox WHERE status = 'pending' AND class = 'fresh'
                AND seq > (SELECT last_value FROM outbox.outbox_mark)) - 1,
        (SELECT last_value FROM outbox.outbox_seq))))";

/// Publishes in transactions that stay open for a while, one in five rolled back, some through a savepoint.
async fn publish(world: Arc<World>, seed: u64, end: Instant) {
    let mut random = fastrand::Rng::with_seed(seed);
    while Instant::now() < end {
        let mut transaction = world.pool().begin().await.unwrap();
        world
            .publisher
            .publish(&mut transaction, event("1"))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(random.u64(0..300))).await;
        let mut inner = transaction.begin().await.unwrap();
        world
            .publisher
            .publish_all(&mut inner, (0..3).map(|_| event("2")))
            .await
            .unwrap();
        match random.bool() {
            true => inner.commit().await.unwrap(),
            false => inner.rollback().await.unwrap(),
        }
        let late = event("3");
        let late = if random.u32(0..10) == 0 {
            late.with_delay(Duration::from_millis(200))
        } else {
            late
        };
        world.publisher.publish(&mut transaction, late).await.unwrap();
        match random.u32(0..5) {
            0 => transaction.rollback().await.unwrap(),
            _ => transaction.commit().await.unwrap(),
        }
    }
}

/// Claims and settles until told to stop: most events completed, some retried or released.
async fn relay(world: Arc<World>, seed: u64, stop: Arc<AtomicBool>) {
    let source = world.quiet_source().await;
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::Relaxed) {
        let claimed = claim(&source, 20).await;
        let settlements = claimed.iter().map(|event| {
            let how = match random.u32(0..20) {
                0 => Outcome::Retry {
                    after: Duration::from_millis(100),
                    error: "no".into(),
                    done: vec![],
                },
                1 => Outcome::Released {
                    after: Duration::ZERO,
                    done: vec![],
                },
                _ => Outcome::Completed,
            };
            outcome(event, how)
        });
        source.settle(settlements.collect()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Runs publishers and relays; returns the mark at the end and how many events are below it for ever.
async fn traffic(naive: bool) -> (i64, i64) {
    let world = Arc::new(World::new().await);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let stop = Arc::new(AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(6);
    let relays: Vec<_> = (0..2)
        .map(|n| tokio::spawn(relay(Arc::clone(&world), seed ^ n, Arc::clone(&stop))))
        .collect();
    let publishers: Vec<_> = (10..18)
        .map(|n| tokio::spawn(publish(Arc::clone(&world), seed ^ n, end)))
        .collect();
    while naive && Instant::now() < end {
        world.run(NAIVE).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for publisher in publishers {
        publisher.await.unwrap();
    }
    if !naive {
        world.until("status = 'pending'", 0).await;
    }
    stop.store(true, Ordering::Relaxed);
    for relay in relays {
        relay.await.unwrap();
    }
    let mark = sqlx::query("SELECT last_value FROM outbox.outbox_mark")
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get(0);
    let below = sqlx::query("SELECT below FROM outbox.outbox_sweep()")
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get(0);
    (mark, below)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_mark_passes_no_event_however_late_it_is_committed() {
    let (mark, below) = traffic(false).await;

    assert!(mark > 0, "the mark never moved: the test shows nothing");
    assert_eq!(below, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_rule_loses_events_and_the_sweep_finds_them() {
    let (_, below) = traffic(true).await;

    assert!(
        below > 0,
        "the broken twin lost nothing: the test above may be too weak"
    );
}
