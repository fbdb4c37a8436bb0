//! What stands where, and for how long: the figures that operators go by.

use std::time::Duration;

use outbox_core::{KeyPolicy, OrderingKey, Outcome, TenantId};
use outbox_pg::admin::{Class, FailedFilter, ListFilter, Status};

use crate::support::{World, claim, event};
use crate::{admin, counted, failed, keyed, settle};

/// Adds an event that was published an hour ago, and says for how long one has been due.
async fn due_for(world: &World, class: &str, due: &str, key: &str) -> f64 {
    let insert = format!(
        "INSERT INTO outbox.outbox (id, event_type, payload, ordering_key, class, available_at, created_at) \
         VALUES (gen_random_uuid(), 'Counted', '1', {key}, '{class}', {due}, clock_timestamp() - interval '1 hour')"
    );
    world.run(&insert).await;
    let gauges = admin(world).gauges(1000).await.unwrap();
    let status = admin(world).status().await.unwrap();
    assert!((status.oldest_seconds - gauges.oldest_seconds).abs() < 60.0);
    gauges.oldest_seconds
}

#[tokio::test]
async fn the_age_is_for_how_long_an_event_that_could_run_has_been_due() {
    let world = World::new().await;
    let admin = admin(&world);
    let key = OrderingKey::new("k").unwrap();
    let (soon, before) = (
        "clock_timestamp() + interval '1 hour'",
        "clock_timestamp() - interval '10 minutes'",
    );

    // What waits for something else is not late, however long ago it was published.
    assert_eq!(due_for(&world, "scheduled", soon, "NULL").await, 0.0);
    assert_eq!(due_for(&world, "waiting", soon, "NULL").await, 0.0);
    admin.pause_key(&TenantId::default(), &key, "").await.unwrap();
    assert_eq!(due_for(&world, "held", "NULL", "'k'").await, 0.0);
    admin.pause_type(&counted(), "").await.unwrap();
    assert_eq!(due_for(&world, "barred", "NULL", "NULL").await, 0.0);

    // A retry or a schedule is late from its time on.
    for class in ["waiting", "scheduled"] {
        let age = due_for(&world, class, before, "NULL").await;
        assert!((600.0..660.0).contains(&age), "{class}: {age}");
        world
            .run("DELETE FROM outbox.outbox WHERE available_at < clock_timestamp()")
            .await;
    }

    // What no relay has room for, and what nobody has looked at yet, since it was published.
    world
        .run("DELETE FROM outbox.outbox_block WHERE scope = 'type'")
        .await;
    let age = admin.gauges(1000).await.unwrap().oldest_seconds;
    assert!((3600.0..3660.0).contains(&age), "{age}");
    world
        .run("DELETE FROM outbox.outbox WHERE class = 'barred'")
        .await;
    let age = due_for(&world, "fresh", "NULL", "NULL").await;
    assert!((3600.0..3660.0).contains(&age), "{age}");
}

#[tokio::test]
async fn a_redriven_event_is_late_from_its_redrive_on() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(event("1")).await;
    world.publish(keyed(2, "k")).await;
    for claimed in claim(&source, 2).await {
        settle(&source, &claimed, failed(KeyPolicy::GoOn)).await;
    }
    world
        .run("UPDATE outbox.outbox SET created_at = created_at - interval '1 hour'")
        .await;

    let redrive = admin(&world).redrive(&FailedFilter::all(), "").await.unwrap();
    assert_eq!(redrive.run().await.unwrap().changed, 2);

    let age = admin(&world).gauges(1000).await.unwrap().oldest_seconds;
    assert!(age > 0.0 && age < 60.0, "{age}");
}

#[tokio::test]
async fn status_and_gauges_equal_a_recount() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    let admin = admin(&world);
    world.publish(keyed(1, "k")).await;
    settle(&source, &claim(&source, 1).await[0], failed(KeyPolicy::Park)).await;
    world.publish(keyed(2, "k")).await;
    world
        .publish(event("3").with_delay(Duration::from_secs(3600)))
        .await;
    world.publish(event("4")).await;
    world.publish(event("5")).await;
    let retry = Outcome::Retry {
        after: Duration::from_secs(3600),
        error: "later".to_owned(),
        done: Vec::new(),
    };
    let claimed = claim(&source, 2).await;
    settle(&source, &claimed[0], retry).await;

    let status = admin.status().await.unwrap();
    let gauges = admin.gauges(1000).await.unwrap();

    assert_eq!((status.fresh, status.scheduled, status.waiting), (1, 1, 1));
    assert_eq!((status.held, status.barred, status.retrying), (1, 0, 1));
    assert_eq!((status.failed, status.discarded, status.in_flight), (1, 0, 1));
    assert_eq!((status.blocked, status.leases, status.expired_leases), (1, 1, 0));
    assert_eq!(status.blocks[0].reason, "parked");
    assert_eq!(status.types[0].pending, 4);
    assert_eq!(
        i64::try_from(status.pending()).unwrap(),
        world.count("status = 'pending'").await
    );
    assert_eq!((gauges.pending, gauges.failed, gauges.in_flight), (4, 1, 1));
    assert!(gauges.oldest_seconds > 0.0 && gauges.oldest_seconds < 60.0);

    let held = admin
        .list(&ListFilter::new(Status::Pending).in_class(Class::Held))
        .await
        .unwrap();
    assert_eq!(held.len(), 1);
    let details = admin.show(held[0].id).await.unwrap();
    assert_eq!(details[0].blocked_by, ["key parked"]);
    let dead = admin
        .list(&ListFilter::new(Status::Failed).with_error("CARD"))
        .await
        .unwrap();
    assert_eq!(dead[0].error.as_deref(), Some("the card was refused"));
    assert_eq!(
        admin
            .payload(dead[0].id, &TenantId::default())
            .await
            .unwrap()
            .as_deref(),
        Some("1")
    );
    let page = ListFilter::new(Status::Failed).after(dead[0].position);
    assert!(admin.list(&page).await.unwrap().is_empty());
    assert_eq!(admin.list_ids(&[held[0].id]).await.unwrap(), held);
}
