//! Deleting what is settled and past its retention.

use std::time::Duration;

use outbox_core::KeyPolicy;
use outbox_pg::admin::{FailedFilter, ListFilter, Status};

use crate::support::{World, claim, event};
use crate::{admin, drain, failed, keyed, settle};

#[tokio::test]
async fn pruning_deletes_settled_events_past_retention_and_nothing_else() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let admin = admin(&world);
    world.publish(keyed(1, "parked")).await;
    settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::Park)).await;
    for n in [2, 3] {
        world.publish(event(&n.to_string())).await;
        settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::GoOn)).await;
    }
    let discarded = admin.list(&ListFilter::new(Status::Failed)).await.unwrap()[1].id;
    let discard = admin.discard(&FailedFilter::ids([discarded]), "").await.unwrap();
    discard.run().await.unwrap();
    world.publish_range(0..3000, |_| None).await;
    assert_eq!(drain(&source).await.len(), 3000);
    world.publish(event("4")).await;

    let young = admin.pruner(Duration::from_secs(3600)).run_once().await.unwrap();
    assert_eq!(young.events, 0);
    let pruned = admin.pruner(Duration::ZERO).pages(7).run_once().await.unwrap();

    assert_eq!(pruned.events, 3001);
    assert_eq!(world.count("status = 'completed'").await, 0);
    assert_eq!(world.count("status = 'failed'").await, 2);
    let failed_too = admin
        .pruner(Duration::ZERO)
        .failed_too()
        .run_once()
        .await
        .unwrap();
    assert_eq!(failed_too.events, 1, "an event that parks a key stays");
    assert_eq!(world.count("status = 'pending'").await, 1);
}

#[tokio::test]
async fn the_background_pruner_keeps_at_it() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let pruner = admin(&world)
        .pruner(Duration::ZERO)
        .every(Duration::from_millis(10));
    let handle = pruner.spawn().unwrap();

    for round in 0..3 {
        world.publish_range(0..50, |_| None).await;
        drain(&source).await;
        world.until("status = 'completed'", 0).await;
        assert_eq!(world.count("true").await, 0, "round {round}");
    }
    drop(handle);
}
