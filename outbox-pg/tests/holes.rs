//! Claims that go on where the last one ended: what may come up below that place is found all the same, each time at once.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{Claimed, NewEvent, OrderingKey, Outcome, Source};
use sqlx::{Acquire, Row};
use support::{World, claim, event, payload, settle};

fn payloads(claimed: &[Claimed]) -> Vec<String> {
    claimed.iter().map(payload).collect()
}

fn keyed(json: &str) -> NewEvent {
    event(json).with_ordering_key(OrderingKey::new("k").unwrap())
}

#[tokio::test]
async fn what_is_committed_late_is_claimed_next() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let mut late = world.pool().begin().await.unwrap();
    world.publisher.publish(&mut late, keyed("1")).await.unwrap();
    world.publish(event("2")).await;
    assert_eq!(payloads(&claim(&source, 10).await), ["2"]);
    world.publish(keyed("3")).await;

    late.commit().await.unwrap();

    // Both are of one key: the later one, which is above the place, must not go first.
    assert_eq!(payloads(&claim(&source, 1).await), ["1"]);
}

#[tokio::test]
async fn what_a_claim_had_no_room_for_is_claimed_next() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..6, |_| None).await;
    // More than the bytes allowed: one event at a time.
    let mut request = support::request(4);
    request.max_bytes = 1;

    for n in 0..3 {
        let one = source.claim(request.clone()).await.unwrap();
        assert_eq!(payloads(&one), [n.to_string()]);
    }
    assert_eq!(payloads(&claim(&source, 10).await), ["3", "4", "5"]);
}

#[tokio::test]
async fn a_key_in_flight_leaves_holes_that_are_claimed_when_it_is_free() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(keyed("1")).await;
    let first = claim(&source, 10).await;
    world.publish(keyed("2")).await;
    world.publish(event("3")).await;
    assert_eq!(payloads(&claim(&source, 10).await), ["3"]);

    settle(&source, &first, Outcome::Completed).await;

    assert_eq!(payloads(&claim(&source, 10).await), ["2"]);
}

#[tokio::test]
async fn what_was_handed_back_is_found_beside_claims_that_passed_it() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..2, |_| None).await;
    let first = claim(&source, 1).await;
    let second = claim(&source, 1).await;
    assert_eq!(payloads(&second), ["1"]);

    let released = Outcome::Released {
        after: Duration::ZERO,
        done: Vec::new(),
    };
    settle(&source, &first, released).await;

    assert_eq!(payloads(&claim(&source, 10).await), ["0"]);
}

/// Nobody's events, which the lease beside them has passed.
#[tokio::test]
async fn events_of_a_lease_deleted_by_hand_are_found_by_the_sweep_at_the_latest() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(event("0")).await;
    claim(&source, 1).await;
    world.publish(event("1")).await;
    let beside = claim(&source, 1).await;
    world
        .run("DELETE FROM outbox.outbox_lease WHERE number = 1")
        .await;
    assert!(claim(&source, 10).await.is_empty());

    settle(&source, &beside, Outcome::Completed).await;
    world.run("SELECT outbox.outbox_sweep()").await;

    assert_eq!(payloads(&claim(&source, 10).await), ["0"]);
}

#[tokio::test]
async fn a_claim_that_was_undone_leaves_no_trace() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..3, |_| None).await;
    claim(&source, 1).await;
    let mut connection = world.pool().acquire().await.unwrap();
    let mut undone = connection.begin().await.unwrap();
    let sql =
        "SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 1, 1000000, interval '1 minute', '{}')";
    sqlx::query(sql).fetch_one(&mut *undone).await.unwrap();
    undone.rollback().await.unwrap();

    assert_eq!(payloads(&claim(&source, 10).await), ["1", "2"]);
}

#[tokio::test]
async fn numbers_that_began_anew_are_not_taken_for_seen_ones() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..3, |_| None).await;
    claim(&source, 3).await;

    // The leases stay, as they would not after TRUNCATE.
    world
        .run("DELETE FROM outbox.outbox; ALTER SEQUENCE outbox.outbox_seq RESTART")
        .await;
    world.publish_range(10..15, |_| None).await;

    // Those that have the numbers of events in flight come when these end.
    assert_eq!(payloads(&claim(&source, 10).await), ["13", "14"]);
}

/// It gives the sequence another file, although the numbers go on.
#[tokio::test]
async fn an_altered_sequence_hands_nothing_out_twice() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..6, |_| None).await;
    world
        .run("UPDATE outbox.outbox SET class = 'waiting', available_at = now() + interval '1 hour' WHERE seq = 1")
        .await;
    assert_eq!(claim(&source, 10).await.len(), 5);

    world
        .run("ALTER SEQUENCE outbox.outbox_seq MAXVALUE 1000000")
        .await;
    world
        .run("UPDATE outbox.outbox SET available_at = now() WHERE seq = 1")
        .await;

    assert_eq!(payloads(&claim(&source, 10).await), ["0"]);
    assert!(claim(&source, 10).await.is_empty());
}

#[tokio::test]
async fn numbers_are_ranges_whatever_their_order() {
    let world = World::new().await;
    for (numbers, ranges) in [
        ("{1,2,3}", "{[1,4)}"),
        ("{3,1,2}", "{[1,4)}"),
        ("{5,5,7}", "{[5,6),[7,8)}"),
        ("{5,1,7}", "{[1,2),[5,6),[7,8)}"),
        ("{}", "{}"),
    ] {
        let found: String = sqlx::query_scalar("SELECT outbox.outbox_ranges($1::text::bigint[])::text")
            .bind(numbers)
            .fetch_one(world.pool())
            .await
            .unwrap();
        assert_eq!(found, ranges, "{numbers}");
    }
}

#[tokio::test]
async fn what_is_in_flight_does_not_hold_the_mark() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(event("0")).await;
    let slow = claim(&source, 1).await;
    world.publish_range(1..100, |_| None).await;
    let others = claim(&source, 100).await;
    settle(&source, &others, Outcome::Completed).await;

    assert_eq!(world.move_mark().await, 100);

    let admin = outbox_pg::admin::PgAdmin::new(world.pool().clone(), &outbox_pg::Names::default());
    let gauges = admin.gauges(1_000).await.unwrap();
    assert_eq!((gauges.pending, gauges.in_flight), (1, 1));
    assert!(gauges.oldest_seconds > 0.0, "{gauges:?}");
    assert_eq!(admin.status().await.unwrap().fresh, 1);
    let released = Outcome::Released {
        after: Duration::ZERO,
        done: Vec::new(),
    };
    settle(&source, &slow, released).await;
    assert_eq!(payloads(&claim(&source, 10).await), ["0"]);
}

#[tokio::test]
async fn a_type_without_room_does_not_hold_the_mark() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let slow = outbox_core::EventType::new("Slow").unwrap();
    let stuck = NewEvent::raw(slow.clone(), outbox_core::Payload::from_json("0"));
    world.publish(stuck).await;
    let mut request = support::request(500);
    request.excluded_types = vec![slow];
    for _ in 0..26 {
        world.publish_range(0..500, |_| None).await;
        let claimed = source.claim(request.clone()).await.unwrap();
        assert!(claimed.len() > 400, "{}", claimed.len());
        settle(&source, &claimed, Outcome::Completed).await;
        // So that the next claim has one to go on from.
        world.publish(event("1")).await;
        assert!(!source.claim(request.clone()).await.unwrap().is_empty());
    }

    assert!(world.move_mark().await > 10_000, "{}", world.move_mark().await);
    assert_eq!(payloads(&claim(&source, 10).await), ["0"]);
}

/// Also if each claim is settled before the next, so that only the slow one's lease tells where to go on.
#[tokio::test]
async fn an_event_behind_a_slow_one_of_its_key_does_not_hold_the_mark() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(keyed("1")).await;
    let slow = claim(&source, 1).await;
    world.publish(keyed("2")).await;
    for _ in 0..24 {
        world.publish_range(0..500, |_| None).await;
        let claimed = claim(&source, 500).await;
        settle(&source, &claimed, Outcome::Completed).await;
    }

    assert!(world.move_mark().await > 10_000, "{}", world.move_mark().await);
    assert_eq!(world.count("class = 'held'").await, 1);
    settle(&source, &slow, Outcome::Completed).await;
    assert!(payloads(&claim(&source, 500).await).contains(&"2".to_owned()));
}

/// The first is an open publisher's, say, and the others numbers that were rolled back long after.
#[tokio::test]
async fn of_many_holes_the_widest_gaps_are_kept() {
    let world = World::new().await;
    let after = "SELECT after.holes @> 1::bigint AND NOT after.holes @> 500::bigint AND after.holes @> 1999::bigint,
            (SELECT count(*) FROM unnest(after.holes))
        FROM outbox.outbox_read_facts(gen_random_uuid(), now()) AS facts,
            outbox.outbox_seen_after(facts, (
                SELECT range_agg(claimed) FROM (
                    SELECT int8range(2, 1000) UNION ALL
                    SELECT int8range(1000 + 10 * n, 1009 + 10 * n) FROM generate_series(0, 100) AS n) AS every (claimed))) AS after";
    let row = sqlx::query(after).fetch_one(world.pool()).await.unwrap();
    assert!(row.get::<bool, _>(0));
    assert_eq!(row.get::<i64, _>(1), 25);
}

#[tokio::test]
async fn many_scattered_holes_are_looked_for_all_at_once() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let mut late = world.pool().acquire().await.unwrap();
    let mut late = late.begin().await.unwrap();
    for n in 0..60 {
        let odd = event(&(2 * n + 1).to_string());
        world.publisher.publish(&mut late, odd).await.unwrap();
        world.publish(event(&(2 * n).to_string())).await;
    }
    assert_eq!(claim(&source, 100).await.len(), 60);
    let holes = "SELECT count(*) FROM outbox.outbox_lease CROSS JOIN unnest(holes) AS hole";
    let holes: i64 = sqlx::query_scalar(holes).fetch_one(world.pool()).await.unwrap();
    assert_eq!(holes, 25);

    // One of the first numbers comes up. The claim of it does not know of the others, and must not make them look free.
    world.publish(event("0")).await;
    assert_eq!(claim(&source, 100).await.len(), 1);
    assert!(claim(&source, 100).await.is_empty());
    late.commit().await.unwrap();

    assert_eq!(claim(&source, 100).await.len(), 60);
    assert!(claim(&source, 100).await.is_empty());
}

#[tokio::test]
async fn a_claim_does_not_pass_over_what_is_in_flight() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..11_000, |_| None).await;
    claim(&source, 100).await;
    let few = world.blocks_of_a_claim().await;

    for _ in 0..20 {
        claim(&source, 500).await;
    }

    let many = world.blocks_of_a_claim().await;
    assert!(
        many <= 2 * few,
        "{many} blocks beside 10,000 in flight, {few} beside 100"
    );
}
