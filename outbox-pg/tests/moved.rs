//! Rows that are not where they were when they were claimed: moved by hand, or by rewriting the table.

mod support;

use outbox_core::{Outcome, Source};
use support::{World, claim, outcome, payload};

/// Makes every lease point to wrong places: the first of its rows for all of them.
const MISLEAD: &str = "
    CREATE FUNCTION mislead() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        NEW.tids := array_fill(NEW.tids[1], ARRAY[cardinality(NEW.tids)]);
        RETURN NEW;
    END $$;
    CREATE TRIGGER mislead BEFORE INSERT ON outbox.outbox_lease FOR EACH ROW EXECUTE FUNCTION mislead()";

#[tokio::test]
async fn events_that_are_not_where_the_claim_saw_them_are_read_and_settled_all_the_same() {
    let world = World::new().await;
    world
        .publish_range(0..20, |n| (n % 2 == 0).then(|| format!("key-{n}")))
        .await;
    world.run(MISLEAD).await;
    let source = world.quiet_source().await;

    let claimed = claim(&source, 100).await;
    let payloads: Vec<String> = claimed.iter().map(payload).collect();
    let settlements = claimed.iter().map(|event| outcome(event, Outcome::Completed));
    let settled = source.settle(settlements.collect()).await.unwrap();

    assert_eq!(payloads, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(settled.lost, []);
    assert_eq!(world.count("status = 'completed'").await, 20);
}

#[tokio::test]
async fn events_that_move_while_they_are_claimed_are_settled() {
    for deleting in [false, true] {
        let world = World::new().await;
        world.publish_range(0..20, |_| None).await;
        let source = world.source().poll_only();
        let source = if deleting {
            source.delete_completed()
        } else {
            source
        };
        let source = source.start().await.unwrap();
        let claimed = claim(&source, 100).await;

        world
            .run("UPDATE outbox.outbox SET error = 'by hand' WHERE seq <= 10")
            .await;
        world.run("VACUUM FULL outbox.outbox").await;
        let settlements = claimed.iter().map(|event| outcome(event, Outcome::Completed));
        let settled = source.settle(settlements.collect()).await.unwrap();

        assert_eq!(settled.lost, []);
        assert_eq!(world.count("status = 'pending'").await, 0);
        assert_eq!(
            world.count("status = 'completed'").await,
            if deleting { 0 } else { 20 }
        );
    }
}
