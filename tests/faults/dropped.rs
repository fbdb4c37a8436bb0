//! Futures that are dropped at any of their awaits leave nothing behind: no session in a transaction, no lock, nothing lost.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use outbox::{ClaimRequest, Names, Outcome, Settlement, Source, migrate};
use outbox_dev::TestDatabase;
use sqlx::postgres::PgPoolOptions;
use sqlx::{PgPool, Row};

use crate::world::{Seen, World, many, nonzero, numbered, relay};

/// Polls a future so many times, and drops it unless it has completed.
async fn poll_and_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if let Poll::Ready(done) = future.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        left -= 1;
        if left == 0 {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Runs `attempt` with one more poll each time until it completes; how many polls that took.
async fn drop_at_every_await(attempt: impl AsyncFn(usize) -> bool) -> usize {
    for polls in 1..500 {
        if attempt(polls).await {
            return polls;
        }
    }
    panic!("not completed after 500 polls");
}

/// A pool of one connection: whatever a dropped future did to it, the next user meets.
async fn one_connection(database: &TestDatabase) -> PgPool {
    PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(20))
        .connect_with(database.connect_options())
        .await
        .unwrap()
}

#[tokio::test]
async fn publishing() {
    let world = World::new().await;
    let pool = one_connection(&world.database).await;

    let polls = drop_at_every_await(async |polls| {
        let mut transaction = pool.begin().await.unwrap();
        let published = poll_and_drop(world.publisher.publish(&mut transaction, numbered(0)), polls).await;
        match published {
            Some(done) => {
                done.unwrap();
                transaction.commit().await.unwrap();
                true
            }
            None => {
                drop(transaction);
                // The same connection, in the next hands.
                let mut next = pool.begin().await.unwrap();
                world.publisher.publish(&mut next, numbered(1)).await.unwrap();
                next.commit().await.unwrap();
                false
            }
        }
    })
    .await;

    world.until_clean().await;
    assert!(polls > 1, "it never waited");
    assert_eq!(
        world.count("payload->>'n' = '0'").await,
        1,
        "what was dropped is not there"
    );
    assert_eq!(
        world.count("payload->>'n' = '1'").await,
        polls as i64 - 1,
        "the others are"
    );
}

#[tokio::test]
async fn publishing_many() {
    let world = World::new().await;
    let pool = one_connection(&world.database).await;

    let polls = drop_at_every_await(async |polls| {
        let mut transaction = pool.begin().await.unwrap();
        match poll_and_drop(world.publisher.publish_all(&mut transaction, many(1_000)), polls).await {
            Some(done) => {
                done.unwrap();
                transaction.commit().await.unwrap();
                true
            }
            None => false,
        }
    })
    .await;

    world.until_clean().await;
    assert!(polls > 1, "it never waited");
    assert_eq!(world.count("true").await, 1_000);
}

#[tokio::test]
async fn claiming_settling_extending_and_waiting() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let lease = Duration::from_millis(400);
    let request = || ClaimRequest::new(nonzero(10), lease);

    world.publish_all(many(10)).await;
    drop_at_every_await(async |polls| poll_and_drop(source.claim(request()), polls).await.is_some()).await;
    world.until_clean().await;
    // What dropped claims have taken comes back with the end of their leases.
    let mut taken = 0;
    while taken < 10 {
        for claimed in source
            .claim(ClaimRequest::new(nonzero(10), Duration::from_secs(60)))
            .await
            .unwrap()
        {
            taken += 1;
            assert_eq!(claimed.lost_claims, 0);
            let settlement = || Settlement {
                token: claimed.token,
                position: claimed.position,
                id: claimed.id,
                outcome: Outcome::Completed,
            };
            drop_at_every_await(async |polls| {
                poll_and_drop(source.extend(&[claimed.token], lease * 100), polls)
                    .await
                    .is_some()
            })
            .await;
            // A dropped settlement was recorded whole or not at all; the last one reports what was recorded before.
            drop_at_every_await(async |polls| {
                poll_and_drop(source.settle(vec![settlement()]), polls)
                    .await
                    .is_some()
            })
            .await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(
        poll_and_drop(source.wait(Duration::from_secs(60)), 1)
            .await
            .is_none()
    );

    world.until_clean().await;
    assert_eq!(world.count("status = 'completed' AND retry_count = 0").await, 10);
    world
        .until_number("SELECT count(*) FROM outbox.outbox_lease", 0)
        .await;
}

#[tokio::test]
async fn starting_a_source() {
    let world = World::new().await;

    drop_at_every_await(async |polls| poll_and_drop(world.source().start(), polls).await.is_some()).await;

    world.until_clean().await;
}

#[tokio::test]
async fn migrating() {
    let database = TestDatabase::create().await.unwrap();
    let pool = one_connection(&database).await;

    let polls = drop_at_every_await(async |polls| {
        let mut connection = pool.acquire().await.unwrap();
        let done = poll_and_drop(migrate(&mut connection, &Names::default()), polls)
            .await
            .map(Result::unwrap);
        drop(connection);
        // The same connection, in the next hands: not in a transaction that nobody knows of, and no lock held.
        let mut next = pool.acquire().await.unwrap();
        let stranded: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()",
        )
        .fetch_one(&mut *next)
        .await
        .unwrap();
        assert_eq!(stranded, 0, "a lock after {polls} polls");
        // In a statement sent alone the two differ only inside of a transaction.
        let own = sqlx::raw_sql("SELECT now() = statement_timestamp()")
            .fetch_one(&mut *next)
            .await
            .unwrap();
        assert!(
            own.get::<bool, _>(0),
            "still in a transaction after {polls} polls"
        );
        done.is_some()
    })
    .await;

    assert!(polls > 1, "it never waited");
}

#[tokio::test]
async fn relaying() {
    let world = World::new().await;
    world.publish_all(many(300)).await;
    let seen = Seen::default();

    for polls in 1..40 {
        let source = world.source().start().await.unwrap();
        let short = relay(source, seen.dispatcher())
            .handler_timeout(Duration::from_millis(900))
            .lease(Duration::from_secs(1))
            .build()
            .unwrap();
        // An idle relay is polled seldom: it has done what it can within this time.
        let run = poll_and_drop(short.run_until(std::future::pending()), polls);
        let dropped = tokio::time::timeout(Duration::from_millis(300), run).await;
        assert!(dropped.is_err() || dropped.is_ok_and(|ended| ended.is_none()));
    }
    let source = world.source().start().await.unwrap();
    let last = relay(source, seen.dispatcher()).build().unwrap().spawn();
    world.until("status = 'completed'", 300).await;
    last.shutdown().await.unwrap();

    world.until_clean().await;
    assert_eq!(world.count("retry_count > 0").await, 0);
    assert_eq!(world.leases().await, 0);
}

#[tokio::test]
async fn stopping() {
    let world = World::new().await;
    let seen = Seen::default();

    for polls in 1..20 {
        world.publish_all(many(20)).await;
        let source = world.source().start().await.unwrap();
        let running = relay(source, seen.dispatcher())
            .handler_timeout(Duration::from_millis(900))
            .lease(Duration::from_secs(1))
            .build()
            .unwrap();
        // Stops as soon as it runs; dropped while it stops.
        let _ = poll_and_drop(running.run_until(std::future::ready(())), polls).await;
        let source = world.source().start().await.unwrap();
        let running = relay(source, seen.dispatcher()).build().unwrap().spawn();
        let _ = poll_and_drop(running.shutdown(), polls).await;
    }
    let source = world.source().start().await.unwrap();
    let last = relay(source, seen.dispatcher()).build().unwrap().spawn();
    world.until("status = 'completed'", 19 * 20).await;
    last.shutdown().await.unwrap();

    world.until_clean().await;
    assert_eq!(world.count("retry_count > 0").await, 0);
}
