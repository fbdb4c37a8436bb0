//! Publishing in the transactions of other drivers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;
mod ways;

use std::sync::Arc;
use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection};
use outbox_core::{NewEvent, OrderingKey, PublishError, TenantId};
use outbox_dev::Pooler;
use sea_orm::{ConnectionTrait, TransactionTrait};
use sqlx::Row;
use support::{World, event};

/// An event with everything that an event can have.
fn full() -> NewEvent {
    let key = OrderingKey::new("k'1").unwrap();
    event(r#"{"a":  "\u00e4 'quoted' $1"}"#)
        .with_ordering_key(key)
        .with_tenant(TenantId::new("t").unwrap())
        .with_header("traceparent", "00-1")
        .with_delay(Duration::from_secs(3600))
}

async fn world() -> World {
    let world = World::new().await;
    world.run("CREATE TABLE orders (id bigint)").await;
    world
}

/// The order and the full event of a committed transaction, and nothing of one that was rolled back.
async fn assert_published(world: &World, id: outbox_core::EventId) {
    assert_eq!(world.count("true").await, 1);
    let row = sqlx::query(
        "SELECT payload::text, headers ->> 'traceparent', ordering_key, tenant_id, class,
            available_at > now() + interval '59 minutes', (SELECT count(*) FROM orders)
         FROM outbox.outbox WHERE id = $1",
    )
    .bind(id.as_uuid())
    .fetch_one(world.pool())
    .await
    .unwrap();
    let texts: Vec<String> = (0..5).map(|column| row.get(column)).collect();
    assert_eq!(
        texts,
        [r#"{"a":  "\u00e4 'quoted' $1"}"#, "00-1", "k'1", "t", "scheduled"]
    );
    assert!(row.get::<bool, _>(5));
    assert_eq!(row.get::<i64, _>(6), 1);
}

fn too_large() -> NewEvent {
    event(&format!("{:?}", "x".repeat(2 << 20)))
}

#[tokio::test]
async fn tokio_postgres_publishes_in_its_own_transaction() {
    let world = world().await;
    let (mut client, connection) = tokio_postgres::connect(world.database.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let event = full();

    let rolled_back = client.transaction().await.unwrap();
    world
        .publisher
        .publish_tokio_postgres(&rolled_back, full())
        .await
        .unwrap();
    rolled_back.rollback().await.unwrap();
    let kept = client.transaction().await.unwrap();
    kept.execute("INSERT INTO orders VALUES (1)", &[]).await.unwrap();
    let first = world
        .publisher
        .publish_tokio_postgres(&kept, event.clone())
        .await
        .unwrap();
    let refused = world.publisher.publish_tokio_postgres(&kept, too_large()).await;
    let again = world
        .publisher
        .publish_tokio_postgres(&kept, event.clone())
        .await
        .unwrap();
    kept.commit().await.unwrap();

    assert_eq!((first.new, again.new, again.known), (1, 0, 1));
    assert!(matches!(refused, Err(PublishError::Invalid(_))));
    assert_published(&world, event.id).await;
}

#[tokio::test]
async fn diesel_async_publishes_in_its_own_transaction() {
    let world = world().await;
    let mut connection = AsyncPgConnection::establish(world.database.url()).await.unwrap();
    let event = full();

    let publisher = &world.publisher;
    let rolled_back: Result<(), diesel::result::Error> = connection
        .transaction(async |connection| {
            publisher.publish_diesel_async(connection, full()).await.unwrap();
            Err(diesel::result::Error::RollbackTransaction)
        })
        .await;
    assert!(rolled_back.is_err());
    let published = connection
        .transaction(async |connection| {
            let order = diesel::sql_query("INSERT INTO orders VALUES (1)");
            diesel_async::RunQueryDsl::execute(order, connection).await?;
            let first = publisher
                .publish_diesel_async(connection, event.clone())
                .await
                .unwrap();
            let refused = publisher.publish_diesel_async(connection, too_large()).await;
            assert!(matches!(refused, Err(PublishError::Invalid(_))));
            let again = publisher
                .publish_diesel_async(connection, event.clone())
                .await
                .unwrap();
            Ok::<_, diesel::result::Error>((first.new, again.new))
        })
        .await;

    assert_eq!(published.unwrap(), (1, 0));
    assert_published(&world, event.id).await;
}

#[tokio::test]
async fn sea_orm_publishes_in_its_own_transaction() {
    let world = world().await;
    let database = sea_orm::Database::connect(world.database.url()).await.unwrap();
    let event = full();

    let rolled_back = database.begin().await.unwrap();
    world
        .publisher
        .publish_sea_orm(&rolled_back, full())
        .await
        .unwrap();
    rolled_back.rollback().await.unwrap();
    let kept = database.begin().await.unwrap();
    kept.execute_unprepared("INSERT INTO orders VALUES (1)")
        .await
        .unwrap();
    let first = world
        .publisher
        .publish_sea_orm(&kept, event.clone())
        .await
        .unwrap();
    let refused = world.publisher.publish_sea_orm(&kept, too_large()).await;
    let again = world
        .publisher
        .publish_sea_orm(&kept, event.clone())
        .await
        .unwrap();
    kept.commit().await.unwrap();

    assert_eq!((first.new, again.new), (1, 0));
    assert!(matches!(refused, Err(PublishError::Invalid(_))));
    assert_published(&world, event.id).await;
    database.close().await.unwrap();
}

/// So many clients share three sessions of the pooler, and take turns transaction by transaction.
const CLIENTS: u64 = 6;
const TRANSACTIONS: u64 = 20;

/// For drivers whose statements have names whatever their options say: the pooler forgets them after each transaction.
const FORGET: &str = "server_reset_query = DEALLOCATE ALL\nserver_reset_query_always = 1";

/// Runs clients of a pooler side by side; each publishes in transactions, of which every fourth is rolled back.
async fn through_a_pooler<C>(settings: &str, client: impl Fn(Arc<World>, String) -> C)
where
    C: Future<Output = ()> + Send + 'static,
{
    let world = Arc::new(world().await);
    let pooler = Pooler::start_with(&world.database, settings).await.unwrap();
    let clients = (0..CLIENTS).map(|_| tokio::spawn(client(Arc::clone(&world), pooler.url(&world.database))));
    for client in clients.collect::<Vec<_>>() {
        client.await.unwrap();
    }
    let kept = i64::try_from(CLIENTS * TRANSACTIONS * 3 / 4).unwrap();
    assert_eq!(world.count("true").await, kept);
}

#[tokio::test]
#[ignore = "needs the program pgbouncer; .ci/run installs it and runs this"]
async fn tokio_postgres_publishes_through_a_pooler_in_transaction_mode() {
    through_a_pooler("", async |world: Arc<World>, url: String| {
        let (mut client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        for n in 0..TRANSACTIONS {
            let transaction = client.transaction().await.unwrap();
            world
                .publisher
                .publish_tokio_postgres(&transaction, full())
                .await
                .unwrap();
            match n % 4 {
                0 => transaction.rollback().await.unwrap(),
                _ => transaction.commit().await.unwrap(),
            }
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs the program pgbouncer; .ci/run installs it and runs this"]
async fn diesel_async_publishes_through_a_pooler_in_transaction_mode() {
    // Its set-up prepares by name outside of any transaction, which goes well only while nobody else is about.
    let alone = Arc::new(tokio::sync::Mutex::new(()));
    let all_are_set_up = Arc::new(tokio::sync::Barrier::new(usize::try_from(CLIENTS).unwrap()));
    through_a_pooler("", |world: Arc<World>, url: String| {
        let (alone, all_are_set_up) = (Arc::clone(&alone), Arc::clone(&all_are_set_up));
        async move {
            let only = alone.lock().await;
            let mut connection = AsyncPgConnection::establish(&url).await.unwrap();
            drop(only);
            all_are_set_up.wait().await;
            for n in 0..TRANSACTIONS {
                let done: Result<(), diesel::result::Error> = connection
                    .transaction(async |connection| {
                        world
                            .publisher
                            .publish_diesel_async(connection, full())
                            .await
                            .unwrap();
                        match n % 4 {
                            0 => Err(diesel::result::Error::RollbackTransaction),
                            _ => Ok(()),
                        }
                    })
                    .await;
                assert_eq!(done.is_err(), n % 4 == 0, "{done:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs the program pgbouncer; .ci/run installs it and runs this"]
async fn sea_orm_publishes_through_a_pooler_in_transaction_mode() {
    through_a_pooler(FORGET, async |world: Arc<World>, url: String| {
        let mut options = sea_orm::ConnectOptions::new(url);
        options
            .max_connections(1)
            .map_sqlx_postgres_opts(|options| options.statement_cache_capacity(0).extra_float_digits(None));
        let database = sea_orm::Database::connect(options).await.unwrap();
        for n in 0..TRANSACTIONS {
            let transaction = database.begin().await.unwrap();
            world
                .publisher
                .publish_sea_orm(&transaction, full())
                .await
                .unwrap();
            match n % 4 {
                0 => transaction.rollback().await.unwrap(),
                _ => transaction.commit().await.unwrap(),
            }
        }
        database.close().await.unwrap();
    })
    .await;
}
