//! Whose fault it is when claims of one event each are lost.

mod support;

use outbox_core::{Claimed, Source};
use support::{World, claim, event};

/// Ends the lease of this event, as its time does.
async fn end(world: &World, event: &Claimed) {
    let end = "UPDATE outbox.outbox_lease SET until = clock_timestamp()";
    world
        .run(&format!("{end} WHERE number = {}", event.token.number()))
        .await;
}

async fn claim_one(source: &impl Source) -> Claimed {
    let mut claimed = claim(source, 1).await;
    assert_eq!(claimed.len(), 1);
    claimed.remove(0)
}

#[tokio::test]
async fn lone_claims_of_one_relay_that_end_one_after_the_other_are_held_against_nobody() {
    let world = World::new().await;
    let (first, second) = (world.quiet_source().await, world.quiet_source().await);
    for _ in 0..2 {
        world.publish(event("1")).await;
    }
    let together = claim(&first, 2).await;
    end(&world, &together[0]).await;
    let one = claim_one(&second).await;
    let other = claim_one(&second).await;

    // The second relay is gone: of the two, nobody knows which was to blame.
    end(&world, &one).await;
    let one_again = claim_one(&world.quiet_source().await).await;
    end(&world, &other).await;
    let other_again = claim_one(&world.quiet_source().await).await;

    assert_eq!((one_again.id, one_again.lost_claims), (one.id, 0));
    assert_eq!((other_again.id, other_again.lost_claims), (other.id, 0));

    // Alone with its relay, it is.
    end(&world, &one_again).await;
    let blamed = claim_one(&world.quiet_source().await).await;
    assert_eq!((blamed.id, blamed.lost_claims), (one.id, 1));
}

#[tokio::test]
async fn lone_claims_of_one_relay_that_are_not_taken_back_at_once_are_held_against_nobody() {
    /// More by one than a claim takes back.
    const LONE: u32 = 1001;
    let world = World::new().await;
    world.publish_range(0..LONE, |_| None).await;
    world
        .run("UPDATE outbox.outbox SET class = 'waiting', available_at = clock_timestamp(), alone = 1")
        .await;
    assert_eq!(claim(&world.quiet_source().await, LONE).await.len(), 1001);
    world
        .run("UPDATE outbox.outbox_lease SET until = clock_timestamp()")
        .await;

    let next = world.quiet_source().await;
    claim_one(&next).await;
    assert_eq!(world.count("alone = 2").await, 1000);
    // There is nothing for it while it has a suspect; but it takes the last one back.
    claim(&next, 1).await;
    let left = "EXISTS (SELECT FROM outbox.outbox_lease WHERE until <= clock_timestamp())";
    assert_eq!(world.count(left).await, 0);

    assert_eq!(world.count("claim_count > 0").await, 0);
}
