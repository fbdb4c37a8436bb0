//! Behind pgbouncer in transaction mode: every statement may meet another session.

use std::time::Duration;

use outbox::PgSource;
use outbox_dev::Pooler;
use sqlx::postgres::PgPoolOptions;

use crate::world::{Seen, World, handled, many, nonzero, numbered, relay};

#[tokio::test]
#[ignore = "needs the program pgbouncer; .ci/run installs it and runs this"]
async fn publishing_and_relaying_work_behind_a_pooler_in_transaction_mode() {
    let world = World::new().await;
    let pooler = Pooler::start(&world.database).await.unwrap();
    let options = pooler.connect_options(&world.database);
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .connect_with(options.clone())
        .await
        .unwrap();
    let seen = Seen::default();
    let noted = seen.clone();
    let dispatcher = handled(move |event, context: outbox::Context| {
        let seen = noted.clone();
        async move {
            if event.n % 5 == 0 && context.attempt() == 1 {
                return Err(outbox::HandlerError::retry("once more"));
            }
            tokio::time::sleep(Duration::from_millis(event.n % 20)).await;
            seen.add(event.n);
            Ok(())
        }
    });
    let mut relays = Vec::new();
    for _ in 0..3 {
        let source = PgSource::builder(options.clone()).pooler().start().await.unwrap();
        let retry = outbox::RetryPolicy::fixed(nonzero(3), Duration::from_millis(50));
        relays.push(
            relay(source, dispatcher.clone())
                .retry(retry)
                .build()
                .unwrap()
                .spawn(),
        );
    }

    let publishers = (0..4_u64).map(|publisher| {
        let pool = pool.clone();
        let one = outbox::PgPublisher::new(&outbox::Names::default()).pooler();
        tokio::spawn(async move {
            for n in 0..100 {
                let mut transaction = pool.begin().await.unwrap();
                one.publish(&mut transaction, numbered(publisher * 100 + n))
                    .await
                    .unwrap();
                transaction.commit().await.unwrap();
            }
        })
    });
    for publisher in publishers.collect::<Vec<_>>() {
        publisher.await.unwrap();
    }
    let all = many(400).len() as i64;
    world.until("status = 'completed'", all).await;

    for running in relays {
        let report = running.shutdown().await.unwrap();
        assert_eq!(report.lost, 0, "{report:?}");
    }
    assert_eq!(seen.sorted(), (0..400).collect::<Vec<_>>());
    assert_eq!(world.leases().await, 0);
    world.until_clean().await;
}
