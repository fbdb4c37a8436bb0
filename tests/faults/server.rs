//! The server goes down and comes back under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox::PgPublisher;
use outbox_dev::{DevPostgres, ServerOptions, Stop};
use sqlx::{Connection, PgConnection};
use tokio::time::Instant;

use crate::world::{Seen, World, numbered, relay};

/// Publishes one event after the other until told to end; returns the numbers that committed for sure.
async fn publish_through(world: Arc<World>, end: Arc<AtomicU64>) -> Vec<u64> {
    let mut committed = Vec::new();
    let publisher = PgPublisher::new(&outbox::Names::default());
    let mut n = 0;
    while end.load(Ordering::Relaxed) == 0 {
        let Ok(mut connection) = PgConnection::connect(world.database.url()).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        loop {
            n += 1;
            if publisher.publish(&mut connection, numbered(n)).await.is_err() {
                break;
            }
            committed.push(n);
            if end.load(Ordering::Relaxed) != 0 {
                break;
            }
        }
    }
    committed
}

async fn a_relay_comes_through(how: Stop) {
    let server = DevPostgres::start_own(ServerOptions::default().with_fsync(true))
        .await
        .unwrap();
    let world = Arc::new(World::on(&server).await);
    let seen = Seen::default();
    let source = world.source().start().await.unwrap();
    let running = relay(source, seen.dispatcher())
        .handler_timeout(Duration::from_secs(2))
        .lease(Duration::from_secs(3))
        .build()
        .unwrap()
        .spawn();
    let end = Arc::new(AtomicU64::new(0));
    let publishing = tokio::spawn(publish_through(world.clone(), end.clone()));

    for _ in 0..3 {
        let before = seen.len();
        let deadline = Instant::now() + Duration::from_secs(30);
        while seen.len() < before + 50 {
            assert!(Instant::now() < deadline, "no events flow");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.restart(how).await.unwrap();
    }
    end.store(1, Ordering::Relaxed);
    let committed = publishing.await.unwrap();
    world.until("status = 'pending'", 0).await;

    let report = running.shutdown().await.unwrap();
    eprintln!(
        "{how:?}: {} committed, {} handled, {report:?}",
        committed.len(),
        seen.len()
    );
    let mut numbers = seen.sorted();
    numbers.dedup();
    assert!(
        committed.iter().all(|n| numbers.binary_search(n).is_ok()),
        "an event was lost"
    );
    assert_eq!(
        world
            .count("status <> 'completed' OR retry_count > 0 OR claim_count > 0")
            .await,
        0
    );
    assert_eq!(world.count("true").await, numbers.len() as i64);
    assert_eq!(world.leases().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_comes_through_fast_restarts_and_no_attempt_is_charged() {
    a_relay_comes_through(Stop::Fast).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_comes_through_immediate_restarts_and_no_attempt_is_charged() {
    a_relay_comes_through(Stop::Immediate).await;
}
