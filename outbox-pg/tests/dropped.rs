//! Futures that are dropped halfway, on a pool that the application uses too.

mod support;

use outbox_pg::Names;
use outbox_pg::admin::PgAdmin;
use sqlx::postgres::PgPoolOptions;
use support::{World, cut};

#[tokio::test]
async fn what_the_application_does_after_a_dropped_look_is_committed() {
    let world = World::new().await;
    world.run("CREATE TABLE orders (number integer)").await;
    // The next to use the pool gets what the dropped future left.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(world.database.connect_options())
        .await
        .unwrap();
    let admin = PgAdmin::new(pool.clone(), &Names::default());
    let mut ended = false;
    // Which poll finds BEGIN on its way differs from time to time.
    for (number, polls) in (1..=20).cycle().take(200).enumerate() {
        ended |= cut(polls, admin.status()).await;

        sqlx::query("INSERT INTO orders VALUES ($1)")
            .bind(number as i32)
            .execute(&pool)
            .await
            .unwrap();

        let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM orders")
            .fetch_one(world.pool())
            .await
            .unwrap();
        assert_eq!(seen, number as i64 + 1, "cut after {polls} polls");
    }
    assert!(ended, "it was never let end");
}
