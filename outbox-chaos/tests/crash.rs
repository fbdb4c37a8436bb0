//! Relays that are killed, and events that kill them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has to panic"
)]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox::{Names, NewEvent, PgPublisher};
use outbox_chaos::child::Child;
use outbox_chaos::history::{Ending, Record, What, read};
use outbox_chaos::reckoning::{judge, until_drained};
use outbox_chaos::{Act, Scripted};
use support::{World, publisher};
use uuid::Uuid;

const LEASE: Duration = Duration::from_secs(2);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

impl World {
    /// Publishes events with these scripts, and returns their ids.
    async fn publish(&self, acts: &[Act]) -> Vec<Uuid> {
        let events: Vec<NewEvent> = (0..)
            .zip(acts)
            .map(|(n, act)| {
                NewEvent::of(&Scripted {
                    n,
                    act: *act,
                    key: None,
                })
                .unwrap()
            })
            .collect();
        let publisher = PgPublisher::new(&Names::default());
        publisher
            .publish_all(&mut self.connection().await, events.clone())
            .await
            .unwrap();
        events.iter().map(|event| event.id.as_uuid()).collect()
    }

    fn records(&self) -> Vec<Record> {
        read(self.folder.path()).unwrap()
    }

    /// When each event was started by this relay for the first time.
    fn starts(&self, relay: &str) -> BTreeMap<Uuid, i64> {
        let mut starts = BTreeMap::new();
        for record in self.records() {
            if let (What::Started { event, .. }, true) = (record.what, record.process == relay) {
                starts.entry(event).or_insert(record.at_us);
            }
        }
        starts
    }

    /// Waits until the relay has started so many events; for each the time.
    async fn until_started(&self, relay: &str, events: usize) -> BTreeMap<Uuid, i64> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let starts = self.starts(relay);
            if starts.len() >= events {
                return starts;
            }
            assert!(
                Instant::now() < deadline,
                "{relay} has started {} of {events} events",
                starts.len()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn row(&self, event: Uuid) -> (String, i32, Option<String>) {
        sqlx::query_as("SELECT status, claim_count, error FROM outbox.outbox WHERE id = $1")
            .bind(event)
            .fetch_one(self.database.pool())
            .await
            .unwrap()
    }
}

/// Kills a random relay again and again, each time when it is in the midst of something.
#[tokio::test]
async fn relays_that_are_killed_in_a_loop_lose_nothing_and_invent_nothing() {
    let world = World::new().await;
    let mut relays: BTreeMap<String, Child> = BTreeMap::new();
    let mut next = 0;
    let mut fresh = |relays: &mut BTreeMap<String, Child>| {
        next += 1;
        let name = format!("relay-{next}");
        // Hit so often, an innocent event may well be alone in a relay's hands several times when that is killed.
        relays.insert(name.clone(), world.relay(&name, LEASE, 100));
    };
    for _ in 0..3 {
        fresh(&mut relays);
    }
    let mut publishers: Vec<Child> = (1..=4)
        .map(|n| publisher(&world.publisher_config(&format!("publisher-{n}"), 250)))
        .collect();

    let deadline = Instant::now() + Duration::from_secs(120);
    let mut kills = 0;
    while publishers
        .iter_mut()
        .any(|publisher| publisher.ended().unwrap().is_none())
    {
        assert!(Instant::now() < deadline, "the publishers do not end");
        tokio::time::sleep(Duration::from_millis(fastrand::u64(100..500))).await;
        let name = relays
            .keys()
            .nth(fastrand::usize(..relays.len()))
            .unwrap()
            .clone();
        let victim = relays.remove(&name).unwrap();
        world.kill(&name, victim);
        kills += 1;
        fresh(&mut relays);
    }
    until_drained(&mut world.connection().await, Duration::from_secs(60))
        .await
        .unwrap();
    for relay in relays.values() {
        relay.stop().unwrap();
    }
    for relay in relays.into_values() {
        assert!(relay.end(Duration::from_secs(20)).await.unwrap().success());
    }

    let verdict = judge(&mut world.connection().await, world.folder.path())
        .await
        .unwrap();
    eprintln!("{kills} kills: {:?}", verdict.summary);
    assert_eq!(verdict.violations, []);
    assert!(
        verdict.summary.committed > 500 && verdict.summary.rolled_back > 50,
        "{:?}",
        verdict.summary
    );
    assert!(kills >= 5, "the publishers were too fast: {kills} kills");
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox.outbox_lease")
        .fetch_one(world.database.pool())
        .await
        .unwrap();
    assert_eq!(left, 0, "leases after all is settled and stopped");
}

/// How long the others take to have what a relay left behind: until the end of its lease after a kill, and no longer.
#[tokio::test]
async fn events_of_a_killed_relay_come_back_as_soon_as_its_lease_ends() {
    let world = World::new().await;
    let events = world.publish(&[Act::Take(1_900); 15]).await;
    let first = world.relay("first", LEASE, 100);
    let claimed = world.until_started("first", events.len()).await;
    let second = world.relay("second", LEASE, 100);
    let killed_at = outbox_chaos::history::now_us();
    world.kill("first", first);

    let again = world.until_started("second", events.len()).await;

    let earliest = claimed.values().max().unwrap() + LEASE.as_micros() as i64 - 500_000;
    let latest = killed_at + LEASE.as_micros() as i64 + 3_000_000;
    for event in &events {
        let at = again[event];
        assert!(
            at > earliest,
            "taken {} ms before the lease can have ended",
            (earliest - at) / 1_000
        );
        assert!(at < latest, "taken {} ms late", (at - latest) / 1_000);
    }
    drop(second);
}

#[tokio::test]
async fn events_of_a_relay_that_stops_come_back_at_once() {
    let world = World::new().await;
    // A grace of two seconds is not enough for the first ones, and the rest is never begun. Their leases last a minute.
    let events = world.publish(&[Act::Take(1_000_000); 40]).await;
    let first = world.relay("first", MINUTE, 100);
    world.until_started("first", 20).await;
    first.stop().unwrap();
    let ended = Instant::now();
    assert!(first.end(Duration::from_secs(10)).await.unwrap().success());
    // Two seconds of grace, and what Relay::STOP_SLACK allows on top.
    assert!(ended.elapsed() < Duration::from_secs(7), "{:?}", ended.elapsed());
    let leases: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox.outbox_lease")
        .fetch_one(world.database.pool())
        .await
        .unwrap();
    assert_eq!(leases, 0);

    let _second = world.relay("second", MINUTE, 100);
    world.until_started("second", 20).await;

    let cut = world
        .records()
        .iter()
        .filter(|record| {
            matches!(
                record.what,
                What::Ended {
                    how: Ending::CutOff,
                    ..
                }
            )
        })
        .count();
    assert!(cut >= 20, "{cut} handlers were cut off");
    let charged: i64 =
        sqlx::query_scalar("SELECT count(*) FROM outbox.outbox WHERE retry_count > 0 OR claim_count > 0")
            .fetch_one(world.database.pool())
            .await
            .unwrap();
    assert_eq!(charged, 0, "{} events in all", events.len());
}

#[tokio::test]
async fn an_event_that_aborts_its_process_is_dead_after_its_bound_and_its_neighbours_complete() {
    let world = World::new().await;
    let mut acts = vec![Act::Take(100); 9];
    acts.insert(4, Act::Abort);
    let events = world.publish(&acts).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut crashes = 0;

    let mut relay = world.relay("relay-0", SECOND, 3);
    while world.row(events[4]).await.0 == "pending" {
        assert!(Instant::now() < deadline, "not dead after {crashes} crashes");
        if relay.ended().unwrap().is_some() {
            crashes += 1;
            relay = world.relay(&format!("relay-{crashes}"), SECOND, 3);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    until_drained(&mut world.connection().await, Duration::from_secs(20))
        .await
        .unwrap();

    let (status, lost, error) = world.row(events[4]).await;
    assert_eq!((status.as_str(), lost), ("failed", 3));
    assert!(error.unwrap().starts_with("worker lost"));
    // Once in company, once beside other lone claims, when nobody can say which was to blame, and then three times alone.
    assert!(crashes <= 5, "{crashes} crashes");
    for (n, event) in events.iter().enumerate().filter(|(n, _)| *n != 4) {
        let (status, ..) = world.row(*event).await;
        assert_eq!(status, "completed", "neighbour {n}");
    }
}
