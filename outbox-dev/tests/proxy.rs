//! The proxy's faults, seen by a Postgres client.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::time::{Duration, Instant};

use outbox_dev::{Mode, Proxy, TestDatabase};
use sqlx::{Connection, PgConnection, postgres::PgConnectOptions};

/// Long enough to tell a connection that hangs from one that is slow.
const HANGS: Duration = Duration::from_millis(500);

struct World {
    database: TestDatabase,
    proxy: Proxy,
    through: PgConnectOptions,
}

impl World {
    async fn new() -> Self {
        let database = TestDatabase::create().await.unwrap();
        sqlx::query("CREATE TABLE t (n int)")
            .execute(database.pool())
            .await
            .unwrap();
        let direct = database.connect_options();
        let proxy = Proxy::start(format!("{}:{}", direct.get_host(), direct.get_port()))
            .await
            .unwrap();
        let through = direct.host("127.0.0.1").port(proxy.address().port());
        Self {
            database,
            proxy,
            through,
        }
    }

    async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.through).await.unwrap()
    }

    async fn rows(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM t")
            .fetch_one(self.database.pool())
            .await
            .unwrap()
    }
}

async fn insert(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO t VALUES (1)")
        .execute(connection)
        .await
        .map(|_| ())
}

#[tokio::test]
async fn what_is_forwarded_arrives() {
    let world = World::new().await;

    insert(&mut world.connect().await).await.unwrap();

    assert_eq!(world.rows().await, 1);
}

#[tokio::test]
async fn a_delay_is_waited_for_both_ways() {
    let world = World::new().await;
    let mut connection = world.connect().await;
    world.proxy.set(Mode::Delay(Duration::from_millis(100)));

    let begun = Instant::now();
    connection.ping().await.unwrap();

    assert!(
        begun.elapsed() >= Duration::from_millis(200),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_lost_answer_to_a_commit_leaves_it_committed() {
    let world = World::new().await;
    let mut connection = world.connect().await;
    let mut transaction = connection.begin().await.unwrap();
    insert(&mut transaction).await.unwrap();
    world.proxy.set(Mode::CutReplyTo(b"COMMIT".to_vec()));

    let outcome = transaction.commit().await;

    assert!(outcome.is_err(), "the answer was not to arrive");
    world.proxy.reached(&Mode::Forward).await;
    assert_eq!(world.rows().await, 1);
    insert(&mut world.connect().await).await.unwrap();
}

#[tokio::test]
async fn with_replies_dropped_the_work_is_done_unseen() {
    let world = World::new().await;
    let mut connection = world.connect().await;
    world.proxy.set(Mode::DropReplies);

    let query = sqlx::raw_sql("INSERT INTO t VALUES (1)").execute(&mut connection);
    assert!(tokio::time::timeout(HANGS, query).await.is_err());

    let deadline = Instant::now() + Duration::from_secs(30);
    while world.rows().await != 1 {
        assert!(Instant::now() < deadline, "the insert never happened");
    }
}

#[tokio::test]
async fn a_black_hole_hangs_and_then_delivers() {
    let world = World::new().await;
    let mut connection = world.connect().await;
    world.proxy.set(Mode::BlackHole);

    let mut query = Box::pin(sqlx::raw_sql("INSERT INTO t VALUES (1)").execute(&mut connection));
    assert!(tokio::time::timeout(HANGS, &mut query).await.is_err());
    assert_eq!(world.rows().await, 0);
    world.proxy.set(Mode::Forward);

    query.await.unwrap();
    assert_eq!(world.rows().await, 1);
}

#[tokio::test]
async fn down_cuts_and_refuses_until_it_is_up_again() {
    let world = World::new().await;
    let mut connection = world.connect().await;

    world.proxy.set(Mode::Down);

    assert!(connection.ping().await.is_err());
    assert!(PgConnection::connect_with(&world.through).await.is_err());
    world.proxy.set(Mode::Forward);
    world.connect().await.ping().await.unwrap();
}
