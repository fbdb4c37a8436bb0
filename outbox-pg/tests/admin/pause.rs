//! Pausing types and keys, and what becomes of what may not run.

use std::time::Duration;

use outbox_core::{EventType, KeyPolicy, NewEvent, OrderingKey, Outcome, TenantId};

use crate::support::{World, claim, event, payload};
use crate::{admin, counted, drain, failed, keyed, settle};

#[tokio::test]
async fn a_paused_type_waits_and_others_do_not() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let other = EventType::new("Other").unwrap();
    let of_other = || NewEvent::raw(other.clone(), outbox_core::Payload::from_json("9"));
    assert!(admin(&world).pause_type(&counted(), "incident").await.unwrap());
    assert!(!admin(&world).pause_type(&counted(), "incident").await.unwrap());

    world.publish(event("1")).await;
    world.publish(keyed(2, "k")).await;
    world.publish(keyed(3, "k")).await;
    world.publish(of_other()).await;
    assert_eq!(drain(&source).await, ["9"]);
    assert_eq!(drain(&source).await, [""; 0]);

    assert!(admin(&world).resume_type(&counted(), "").await.unwrap());
    let mut all = drain(&source).await;
    assert!(
        all.iter().position(|n| n == "2") < all.iter().position(|n| n == "3"),
        "{all:?}"
    );
    all.sort();
    assert_eq!(all, ["1", "2", "3"]);
}

#[tokio::test]
async fn a_paused_key_waits_and_comes_back_in_order() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let (tenant, key) = (TenantId::default(), OrderingKey::new("k").unwrap());
    world.publish(keyed(1, "k")).await;
    let first = claim(&source, 1).await;
    admin(&world).pause_key(&tenant, &key, "").await.unwrap();
    for n in 2..5 {
        world.publish(keyed(n, "k")).await;
    }
    world.publish(keyed(9, "other")).await;
    // What was in flight when the key was paused comes back first.
    let again = Outcome::Retry {
        after: Duration::ZERO,
        error: String::new(),
        done: Vec::new(),
    };
    settle(&source, &first[0], again).await;
    assert_eq!(drain(&source).await, ["9"]);

    assert!(
        admin(&world)
            .resume_key(&tenant, &key, "")
            .await
            .unwrap()
            .was_blocked
    );

    assert_eq!(drain(&source).await, ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn a_thousand_events_that_may_not_run_delay_a_healthy_one_by_two_claims_at_most() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let other = EventType::new("Other").unwrap();
    world.publish(keyed(0, "parked")).await;
    settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::Park)).await;
    admin(&world).pause_type(&counted(), "").await.unwrap();
    world
        .publish_range(0..1000, |n| (n % 2 == 0).then(|| "parked".to_owned()))
        .await;
    world
        .publish(NewEvent::raw(other, outbox_core::Payload::from_json("9")))
        .await;

    let mut claims = 0;
    loop {
        claims += 1;
        let claimed = claim(&source, 100).await;
        if !claimed.is_empty() {
            assert_eq!(payload(&claimed[0]), "9");
            break;
        }
        assert!(claims < 3, "not found in {claims} claims");
    }
}
