//! A mark that has no right to be where it is.

use crate::support::{World, claim, event};

/// A dump has its rows as of its snapshot, and its sequences as they are when it reads those.
#[tokio::test]
async fn the_sweep_finds_what_a_restored_dump_has_in_leases_that_had_ended() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world
        .publish_range(0..4, |n| (n > 1).then(|| "k".to_owned()))
        .await;
    claim(&source, 3).await;
    world
        .run("SELECT setval('outbox.outbox_mark', 4), setval('outbox.outbox_lease_mark', 1)")
        .await;
    world
        .run("UPDATE outbox.outbox SET class = 'held' WHERE seq = 4")
        .await;
    assert!(claim(&source, 4).await.is_empty());

    world.run("SELECT outbox.outbox_sweep()").await;

    assert_eq!(claim(&source, 4).await.len(), 4);
}

#[tokio::test]
async fn a_mark_beyond_the_numbers_is_mended_when_a_relay_starts() {
    let world = World::new().await;
    // As after restoring a dump whose sequences are younger than its rows.
    world.publish(event("1")).await;
    world.run("SELECT setval('outbox.outbox_mark', 1000)").await;

    let source = world.quiet_source().await;

    assert_eq!(claim(&source, 10).await.len(), 1);
}

#[tokio::test]
async fn events_below_the_mark_are_mended_when_a_relay_starts() {
    let world = World::new().await;
    world.publish(event("1")).await;
    world.publish(event("2")).await;
    world.run("SELECT setval('outbox.outbox_mark', 1)").await;

    let source = world.quiet_source().await;

    assert_eq!(claim(&source, 10).await.len(), 2);
}

/// Sequences do not follow their transaction back.
#[tokio::test]
async fn a_sweep_that_was_undone_is_done_again() {
    let world = World::new().await;
    world.publish_range(0..3, |_| None).await;
    world.run("SELECT setval('outbox.outbox_mark', 3), setval('outbox.outbox_swept', 3), setval('outbox.outbox_swept_of', 1)").await;

    world.run("BEGIN; SELECT outbox.outbox_sweep(); ROLLBACK").await;
    world.run("SELECT outbox.outbox_sweep()").await;

    let source = world.quiet_source().await;
    assert_eq!(claim(&source, 10).await.len(), 3);
}

#[tokio::test]
async fn what_was_swept_before_the_numbers_began_anew_is_swept_again() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish_range(0..10, |_| None).await;
    world
        .run("UPDATE outbox.outbox SET status = 'completed'; SELECT setval('outbox.outbox_mark', 10); SELECT outbox.outbox_sweep()")
        .await;

    world
        .run("DELETE FROM outbox.outbox; ALTER SEQUENCE outbox.outbox_seq RESTART")
        .await;
    assert!(claim(&source, 10).await.is_empty());
    world.publish(event("1")).await;
    world.run("SELECT setval('outbox.outbox_mark', 1)").await;
    world.run("SELECT outbox.outbox_sweep()").await;

    assert_eq!(claim(&source, 10).await.len(), 1);
}
