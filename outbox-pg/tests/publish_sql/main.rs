//! Publishing by the SQL function: from any language, and from triggers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod refused;
#[path = "../support/mod.rs"]
mod support;

use std::io::Write;
use std::sync::{Arc, Mutex};

use outbox_core::{Outcome, Source};
use sqlx::{Acquire, AssertSqlSafe, Row};
use support::{World, claim, outcome};

/// The only column of the only row.
async fn value<T>(world: &World, sql: &str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    sqlx::query(AssertSqlSafe(sql.to_owned()))
        .fetch_one(world.pool())
        .await
        .unwrap()
        .get(0)
}

#[tokio::test]
async fn an_event_published_by_sql_is_delivered_like_every_other() {
    let world = World::new().await;
    let source = world.quiet_source().await;

    let new: bool = value(
        &world,
        r#"SELECT outbox.outbox_publish('OrderPlaced', '{"order":  7}', ordering_key => 'order 7',
            aggregate_type => 'order', aggregate_id => '7', tenant_id => 'acme', headers => '{"traceparent": "00-1"}')"#,
    )
    .await;

    assert!(new);
    let claimed = claim(&source, 10).await;
    let envelope = claimed[0].envelope.as_ref().unwrap();
    assert_eq!(envelope.payload.as_str(), r#"{"order":  7}"#);
    assert_eq!(envelope.event_type.as_str(), "OrderPlaced");
    assert_eq!(envelope.ordering_key.as_ref().unwrap().as_str(), "order 7");
    assert_eq!(envelope.aggregate_type.as_ref().unwrap().as_str(), "order");
    assert_eq!(envelope.aggregate_id.as_ref().unwrap().as_str(), "7");
    assert_eq!(envelope.tenant_id.as_str(), "acme");
    assert_eq!(envelope.headers["traceparent"], "00-1");
    assert_eq!(envelope.id.as_uuid().get_version_num(), 7);
    source
        .settle(vec![outcome(&claimed[0], Outcome::Completed)])
        .await
        .unwrap();
}

#[tokio::test]
async fn new_ids_are_of_version_7_and_sort_by_time() {
    let world = World::new().await;
    let sorted: bool = value(
        &world,
        "WITH made AS (SELECT n, outbox.outbox_publish_id() AS id, pg_sleep(0.002) FROM generate_series(1, 50) AS n)
         SELECT array_agg(id ORDER BY n) = array_agg(id ORDER BY id) AND bool_and(
            substr(id::text, 15, 1) = '7' AND substr(id::text, 20, 1) IN ('8', '9', 'a', 'b')) FROM made",
    )
    .await;
    assert!(sorted);
    let age: f64 = value(
        &world,
        "SELECT extract(epoch FROM clock_timestamp())::double precision - ('x' || left(replace(outbox.outbox_publish_id()::text, '-', ''), 12))::bit(48)::bigint / 1000.0::double precision",
    )
    .await;
    assert!(age.abs() < 1.0, "{age}");
}

#[tokio::test]
async fn the_same_id_is_new_once_in_each_tenant() {
    let world = World::new().await;
    let publish = |tenant: &str| {
        format!(
            "SELECT outbox.outbox_publish('X', '1', id => '018f0000-0000-7000-8000-000000000001', tenant_id => '{tenant}')"
        )
    };

    assert!(value::<bool>(&world, &publish("a")).await);
    assert!(!value::<bool>(&world, &publish("a")).await);
    assert!(value::<bool>(&world, &publish("b")).await);
}

#[tokio::test]
async fn a_role_that_may_only_insert_publishes_and_learns_whether_the_event_is_new() {
    let world = World::new().await;
    let role = format!("publisher_{}", world.database.name());
    world
        .run(&format!(
            "CREATE ROLE {role}; SELECT outbox.outbox_grant_publisher('{role}'); SELECT outbox.outbox_enable_tenants()"
        ))
        .await;
    let mut connection = world.pool().acquire().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let become_role = AssertSqlSafe(format!("SET LOCAL ROLE {role}"));
    sqlx::query(become_role).execute(&mut *tx).await.unwrap();

    let with_id = "SELECT outbox.outbox_publish('X', '1', id => '018f0000-0000-7000-8000-000000000001', tenant_id => 'a')";
    let inheriting = "SELECT outbox.outbox_publish('X', '1', headers => '{\"a\": \"b\"}')";
    let mut new = Vec::new();
    for sql in [with_id, with_id, inheriting] {
        if sql == inheriting {
            let tenant = "SET LOCAL app.current_tenant = 'b'";
            sqlx::query(tenant).execute(&mut *tx).await.unwrap();
        }
        let row = sqlx::query(sql).fetch_one(&mut *tx).await.unwrap();
        new.push(row.get::<bool, _>(0));
    }
    tx.commit().await.unwrap();

    assert_eq!(new, [true, false, true]);
    world.run("SELECT outbox.outbox_disable_tenants()").await;
    assert_eq!(world.count("tenant_id = 'a'").await, 1);
    assert_eq!(world.count("tenant_id = 'b'").await, 1);
    drop(connection);
    world
        .run(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await;
}

#[tokio::test]
async fn a_trigger_publishes_what_any_program_changes() {
    let world = World::new().await;
    world
        .run(
            "CREATE TABLE orders (id bigint PRIMARY KEY, total numeric NOT NULL);
             CREATE FUNCTION order_placed() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM outbox.outbox_publish('OrderPlaced', row_to_json(NEW),
                     ordering_key => 'order-' || NEW.id, aggregate_type => 'order', aggregate_id => NEW.id::text);
                 RETURN NULL;
             END $$;
             CREATE TRIGGER order_placed AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION order_placed();
             INSERT INTO orders VALUES (1, 9.50), (2, 3)",
        )
        .await;
    let payload: String = value(
        &world,
        "SELECT payload::text FROM outbox.outbox WHERE ordering_key = 'order-1'",
    )
    .await;
    assert_eq!(payload, r#"{"id":1,"total":9.50}"#);
    assert_eq!(world.count("event_type = 'OrderPlaced'").await, 2);
}

#[tokio::test]
async fn the_tenant_of_the_session_is_the_tenant_of_the_event() {
    let world = World::new().await;
    let mut connection = world.pool().acquire().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    sqlx::query("SET LOCAL app.current_tenant = 'acme'")
        .execute(&mut *tx)
        .await
        .unwrap();
    sqlx::query("SELECT outbox.outbox_publish('X', '1'), outbox.outbox_publish('X', '2', tenant_id => '')")
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.commit().await.unwrap();

    assert_eq!(world.count("tenant_id = 'acme' AND payload::text = '1'").await, 1);
    assert_eq!(world.count("tenant_id = '' AND payload::text = '2'").await, 1);
}

#[tokio::test]
async fn a_plain_insert_is_enough() {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world
        .run(r#"INSERT INTO outbox.outbox (id, event_type, payload) VALUES (gen_random_uuid(), 'OrderPlaced', '{"order": 7}')"#)
        .await;
    let claimed = claim(&source, 10).await;
    assert_eq!(
        claimed[0].envelope.as_ref().unwrap().event_type.as_str(),
        "OrderPlaced"
    );
}

#[tokio::test]
async fn a_limit_of_bytes_that_is_no_number_is_named() {
    let world = World::new().await;
    let mut connection = world.pool().acquire().await.unwrap();
    for (limit, shown) in [("abc", "'abc'"), ("0", "'0'"), ("-1", "'-1'"), ("1e6", "'1e6'")] {
        let mut tx = connection.begin().await.unwrap();
        sqlx::query("SELECT set_config('outbox.payload_bytes_max', $1, true)")
            .bind(limit)
            .execute(&mut *tx)
            .await
            .unwrap();
        let publish = sqlx::query("SELECT outbox.outbox_publish('X', '1')");
        let error = publish.execute(&mut *tx).await.unwrap_err();
        assert_eq!(
            error.into_database_error().unwrap().message(),
            format!("outbox.payload_bytes_max is {shown}; it takes a whole number of bytes from 1")
        );
        tx.rollback().await.unwrap();
    }
    let roomy = "SET outbox.payload_bytes_max = ' 2000000 '; SELECT outbox.outbox_publish('X', to_json(repeat('x', 1048577)))";
    sqlx::raw_sql(roomy).execute(&mut *connection).await.unwrap();
    assert_eq!(world.count("true").await, 1);
}

/// What the server said meanwhile, as sqlx passes it on.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_unknown_way_to_wake_is_warned_of_and_the_event_is_published() {
    let world = World::new().await;
    let mut connection = world.pool().acquire().await.unwrap();
    let said = Said::default();
    let writer = said.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let _listening = tracing::subscriber::set_default(subscriber.finish());
    let warning = "it takes handshake, always or never, and counts as handshake";
    let warned = || {
        let bytes = std::mem::take(&mut *said.0.lock().unwrap());
        String::from_utf8(bytes).unwrap().contains(warning)
    };

    for (mode, expected) in [
        ("", false),
        ("handshake", false),
        ("always", false),
        ("nver", true),
        ("never", false),
    ] {
        sqlx::query("SELECT set_config('outbox.wake', $1, false), outbox.outbox_publish('X', '1')")
            .bind(mode)
            .execute(&mut *connection)
            .await
            .unwrap();
        assert_eq!(warned(), expected, "{mode}");
    }
    assert_eq!(world.count("true").await, 5);
}
