//! What a claim reads, and how much it takes, whatever the planner is told.

use std::process::Command;
use std::time::Duration;

use outbox::{ClaimRequest, Source};
use tokio::time::Instant;

use crate::world::{World, many, nonzero};

/// Fills the table past the publisher, and without a fresh statistic: as after a night of work.
async fn a_million_settled(world: &World) {
    world
        .run(
            "ALTER TABLE outbox.outbox SET (autovacuum_enabled = off);
             INSERT INTO outbox.outbox (id, event_type, payload, status, processed_at)
                 SELECT gen_random_uuid(), 'Old', '{}', 'completed', now() FROM generate_series(1, 1000000)",
        )
        .await;
}

/// The plans of all statements that a claim runs, as the server logs them to this session.
fn plans_of_a_claim(url: &str) -> String {
    let script = "LOAD 'auto_explain';
        SET auto_explain.log_min_duration = 0;
        SET auto_explain.log_nested_statements = on;
        SET auto_explain.log_analyze = on;
        SET client_min_messages = log;
        SELECT lease, cardinality(ids) FROM outbox.outbox_claim(
            gen_random_uuid(), 1, 500, 1000000000, interval '30 s', '{}');";
    let done = Command::new("psql")
        .args(["--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", script])
        .output();
    let done = done.expect("psql, which comes with the server");
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_among_a_million_settled_events_reads_by_the_partial_index_without_statistics() {
    let world = World::new().await;
    a_million_settled(&world).await;
    for _ in 0..10 {
        world.publish_all(many(1_000)).await;
    }

    // A relay that starts moves the mark past them.
    let source = world.quiet_source().await;
    world
        .until_number("SELECT last_value FROM outbox.outbox_mark", 1_000_000)
        .await;

    let plans = plans_of_a_claim(world.database.url());

    assert!(plans.contains("outbox_fresh"), "{plans}");
    for line in plans.lines() {
        assert!(!line.contains("Seq Scan on outbox "), "{line}\n{plans}");
        assert!(!line.contains("Bitmap Heap Scan on outbox "), "{line}\n{plans}");
    }
    // And it takes as long as a claim takes, not as long as a million rows.
    let began = Instant::now();
    let claimed = source
        .claim(ClaimRequest::new(nonzero(500), Duration::from_secs(30)))
        .await
        .unwrap();
    assert_eq!(claimed.len(), 500);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_claim_takes_no_more_than_its_limit_whatever_the_planner_may_not_do() {
    let off = [
        "hashjoin",
        "mergejoin",
        "nestloop",
        "sort",
        "material",
        "hashagg",
        "indexscan",
        "memoize",
    ];
    for (n, setting) in off.iter().enumerate() {
        let world = World::new().await;
        for setting in &off[..=n] {
            world.set_default(&format!("enable_{setting} = off")).await;
        }
        let mut events = many(200);
        for (n, event) in events.iter_mut().enumerate() {
            let key = format!("k{}", n % 7);
            event.ordering_key = (n % 2 == 0).then(|| outbox::OrderingKey::new(key).unwrap());
        }
        world.publish_all(events).await;
        let source = world.quiet_source().await;
        let mut taken = 0;

        loop {
            let request = ClaimRequest::new(nonzero(10), Duration::from_secs(60));
            let claimed = source.claim(request).await.unwrap();
            assert!(claimed.len() <= 10, "{} claimed without {setting}", claimed.len());
            if claimed.is_empty() {
                break;
            }
            taken += claimed.len();
            let settlements = claimed.iter().map(|claimed| outbox::Settlement {
                token: claimed.token,
                position: claimed.position,
                id: claimed.id,
                outcome: outbox::Outcome::Completed,
            });
            assert!(
                source
                    .settle(settlements.collect())
                    .await
                    .unwrap()
                    .lost
                    .is_empty()
            );
        }

        assert_eq!(taken, 200, "without {setting}");
        assert_eq!(
            world.count("status = 'completed'").await,
            200,
            "without {setting}"
        );
    }
}
