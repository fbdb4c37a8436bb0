//! Two tenants whose publishers choose the same event id: two events, also while they are leased.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{Claimed, EventId, Outcome, Source, TenantId};
use outbox_pg::{DeliveryState, Names, wait_delivered};
use support::{World, claim, event, outcome};

/// One event of each tenant, with one id.
async fn published(world: &World) -> EventId {
    let first = event("1");
    let id = first.id;
    for tenant in ["a", "b"] {
        let mut event = event("1").with_tenant(TenantId::new(tenant).unwrap());
        event.id = id;
        world.publish(event).await;
    }
    id
}

fn tenant(claimed: &Claimed) -> String {
    claimed.envelope.as_ref().unwrap().tenant_id.to_string()
}

#[tokio::test]
async fn one_does_not_hide_the_other() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    published(&world).await;

    let first = claim(&source, 1).await;
    let second = claim(&source, 1).await;

    assert_eq!((tenant(&first[0]), tenant(&second[0])), ("a".into(), "b".into()));
    assert!(claim(&source, 2).await.is_empty());
}

#[tokio::test]
async fn settling_one_leaves_the_lease_of_the_other() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    published(&world).await;
    // In one lease.
    let both = claim(&source, 2).await;

    for claimed in both {
        let settled = source.settle(vec![outcome(&claimed, Outcome::Completed)]).await;
        assert!(settled.unwrap().lost.is_empty(), "tenant {}", tenant(&claimed));
    }

    assert_eq!(world.count("status = 'completed'").await, 2);
    assert!(claim(&source, 2).await.is_empty());
}

#[tokio::test]
async fn a_lost_lease_of_one_is_not_held_against_the_other() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    published(&world).await;
    let first = claim(&source, 1).await;
    assert_eq!(tenant(&first[0]), "a");
    claim(&source, 1).await;
    world
        .run("UPDATE outbox.outbox_lease SET until = clock_timestamp() WHERE number = (SELECT min(number) FROM outbox.outbox_lease)")
        .await;

    let again = claim(&source, 2).await;

    assert_eq!(again.iter().map(tenant).collect::<Vec<_>>(), ["a"]);
    assert_eq!(
        world
            .count("tenant_id = 'b' AND class = 'fresh' AND alone = 0")
            .await,
        1
    );
}

#[tokio::test]
async fn the_barrier_waits_for_both() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let id = published(&world).await;
    for end in ["pending", "completed"] {
        let claimed = claim(&source, 1).await;
        let settled = source
            .settle(vec![outcome(&claimed[0], Outcome::Completed)])
            .await;
        assert!(settled.unwrap().lost.is_empty());

        let states = wait_delivered(world.pool(), &Names::default(), &[id], Duration::ZERO).await;

        let expected = match end {
            "pending" => DeliveryState::Pending,
            _ => DeliveryState::Completed,
        };
        assert_eq!(states.unwrap(), [expected]);
    }
}
