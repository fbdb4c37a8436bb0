//! What a relay hands back when it stops: another one begins it at once, asleep or not.

mod support;

use std::time::Duration;

use outbox_core::{OrderingKey, Outcome, Source};
use sqlx::postgres::PgListener;
use support::{World, claim, event, outcome};

#[tokio::test]
async fn a_relay_that_sleeps_is_told() {
    for key in [None, Some("k")] {
        let world = World::new().await;
        let source = world.quiet_source().await;
        let event = match key {
            Some(key) => event("1").with_ordering_key(OrderingKey::new(key).unwrap()),
            None => event("1"),
        };
        world.publish(event).await;
        let claimed = claim(&source, 1).await;
        let mut listener = PgListener::connect_with(world.pool()).await.unwrap();
        let lock: i64 = sqlx::query_scalar("SELECT outbox.outbox_lock_number(2)")
            .fetch_one(world.pool())
            .await
            .unwrap();
        listener.listen(&format!("outbox_relays_{lock}")).await.unwrap();
        assert_eq!(world.count("outbox.outbox_next_due() <= 0").await, 0);

        let back = Outcome::Released {
            after: Duration::ZERO,
            done: Vec::new(),
        };
        let settled = source.settle(vec![outcome(&claimed[0], back)]).await.unwrap();

        assert!(settled.lost.is_empty());
        let heard = tokio::time::timeout(Duration::from_secs(60), listener.recv()).await;
        assert!(heard.is_ok(), "key {key:?}");
        // And one whose ears are shut finds out by its next ping.
        assert_eq!(world.count("outbox.outbox_next_due() <= 0").await, 1);
    }
}
