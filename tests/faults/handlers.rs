//! Slow, failing and hostile handlers.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox::{Context, HandlerError};
use sqlx::postgres::PgPoolOptions;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::world::{Seen, World, handled, many, nonzero, numbered, relay};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slow_handler_among_ten_thousand_delays_none_of_the_others() {
    const SLOW: Duration = Duration::from_secs(30);
    let world = World::new().await;
    world.publish_all(many(10_001)).await;
    let dispatcher = handled(|event, _| async move {
        if event.n == 0 {
            tokio::time::sleep(SLOW).await;
        }
        Ok(())
    });
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .handler_timeout(SLOW * 2)
        .lease(SLOW * 3)
        .concurrency(nonzero(10))
        .build()
        .unwrap()
        .spawn();
    let began = Instant::now();

    world.until("status = 'completed'", 10_000).await;

    assert!(began.elapsed() < SLOW, "{:?}", began.elapsed());
    assert_eq!(running.health().in_flight(), 1);
    running.shutdown().await.unwrap();
    assert_eq!(world.count("status = 'pending' AND retry_count = 0").await, 1);
}

/// An error that does something when it is shown or dropped.
#[derive(Debug)]
enum Hostile {
    PanicsInDisplay,
    PanicsInDrop,
    Says(&'static str, usize),
}

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PanicsInDisplay => panic!("in Display"),
            Self::PanicsInDrop => f.write_str("quiet so far"),
            Self::Says(text, times) => (0..*times).try_for_each(|_| f.write_str(text)),
        }
    }
}

impl Error for Hostile {}

impl Drop for Hostile {
    fn drop(&mut self) {
        assert!(!matches!(self, Self::PanicsInDrop), "in Drop");
    }
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in Drop of the future");
    }
}

#[tokio::test]
async fn whatever_a_handler_does_ends_in_its_own_row() {
    let world = World::new().await;
    let dispatcher = handled(|event, context: Context| async move {
        match event.n {
            0 => panic!("in the handler"),
            1 => Err(HandlerError::retry(Hostile::PanicsInDisplay)),
            2 => Err(HandlerError::retry(Hostile::PanicsInDrop)),
            3 => Err(HandlerError::reject("not for me")),
            4 => std::future::pending().await,
            5 => {
                let _bomb = Bomb;
                std::future::pending().await
            }
            6 => {
                context.cancelled().cancelled().await;
                Err(HandlerError::retry("told to end"))
            }
            _ => Ok(()),
        }
    });
    world.publish_all(many(9)).await;
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .handler_timeout(Duration::from_secs(1))
        .build()
        .unwrap()
        .spawn();

    world.until("status = 'pending'", 0).await;

    running.shutdown().await.unwrap();
    let rows: Vec<(String, Option<String>, i32)> =
        sqlx::query_as("SELECT status, error, retry_count FROM outbox.outbox ORDER BY seq")
            .fetch_all(world.pool())
            .await
            .unwrap();
    let says = [
        "in the handler",
        "panicked",
        "quiet so far",
        "not for me",
        "timed out",
        "timed out",
        "told to end",
    ];
    for (n, text) in says.iter().enumerate() {
        let (status, error, retries) = &rows[n];
        assert_eq!((status.as_str(), *retries), ("failed", 1), "event {n}");
        assert!(error.as_ref().unwrap().contains(text), "event {n}: {error:?}");
    }
    assert!(
        rows[7..]
            .iter()
            .all(|(status, error, _)| status == "completed" && error.is_none()),
        "{rows:?}"
    );
}

#[tokio::test]
async fn the_stored_error_is_bounded_on_a_character_boundary_whatever_it_holds() {
    let world = World::new().await;
    let texts = [
        ("a\0b", 100_000),
        ("\u{1F980}", 300_000),
        ("é\u{FFFD}\r\n\u{7}", 1_000),
        ("e\u{301}", 7),
        ("", 1),
    ];
    let dispatcher = handled(move |event, _| async move {
        let (text, times) = texts[usize::try_from(event.n)?];
        Err(HandlerError::reject(Hostile::Says(text, times)))
    });
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .error_max_len(101)
        .build()
        .unwrap()
        .spawn();
    world.publish_all(many(texts.len() as u64)).await;

    world.until("status = 'failed'", texts.len() as i64).await;

    running.shutdown().await.unwrap();
    assert_eq!(world.count("error IS NULL OR char_length(error) > 101").await, 0);
    assert_eq!(world.count("char_length(error) = 101").await, 3);
}

#[tokio::test]
async fn handlers_that_use_up_the_applications_pool_stop_no_relay() {
    let world = World::new().await;
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect_with(world.database.connect_options())
        .await
        .unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let (taken, seen) = (gate.clone(), Seen::default());
    let noted = seen.clone();
    let dispatcher = handled(move |event, _| {
        let (pool, gate, seen) = (pool.clone(), taken.clone(), noted.clone());
        async move {
            if event.n < 10 {
                let _connection = pool.acquire().await?;
                let _permit = gate.acquire().await?;
            }
            seen.add(event.n);
            Ok(())
        }
    });
    world.publish_all(many(10)).await;
    let lease = Duration::from_millis(2_500);
    let running = relay(world.source().start().await.unwrap(), dispatcher)
        .handler_timeout(Duration::from_secs(2))
        .lease(lease)
        .handler_timeout(Duration::from_millis(2_400))
        .retry(outbox::RetryPolicy::fixed(
            nonzero(100),
            Duration::from_millis(10),
        ))
        .build()
        .unwrap()
        .spawn();
    world
        .until_number(
            "SELECT coalesce(sum(cardinality(ids)), 0)::bigint FROM outbox.outbox_lease",
            10,
        )
        .await;

    for n in 10..20 {
        world.publish(numbered(n)).await;
    }
    world.until("status = 'completed'", 10).await;
    // Longer than a lease: heartbeats get through as well.
    tokio::time::sleep(lease * 2).await;
    gate.add_permits(100);
    world.until("status = 'completed'", 20).await;

    let report = running.shutdown().await.unwrap();
    assert_eq!(report.lost, 0, "{report:?}");
    let mut numbers = seen.sorted();
    numbers.dedup();
    assert_eq!(numbers, (0..20).collect::<Vec<_>>());
}
