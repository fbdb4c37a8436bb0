//! Whatever way an event takes into the outbox, its row is the same.

use std::time::Duration;

use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
use jiff::Timestamp;
use outbox_core::{AggregateId, AggregateType, Due, EventId, NewEvent, OrderingKey, TenantId};
use outbox_pg::{Names, PgPublisher};
use sea_orm::{ConnectionTrait, DatabaseConnection};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use crate::support::{World, event};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    /// By hand, every column: what the others are measured by.
    Insert,
    Function,
    Publish,
    PublishAll,
    Statement,
    TokioPostgres,
    DieselAsync,
    SeaOrm,
}

const WAYS: [Way; 8] = [
    Way::Insert,
    Way::Function,
    Way::Publish,
    Way::PublishAll,
    Way::Statement,
    Way::TokioPostgres,
    Way::DieselAsync,
    Way::SeaOrm,
];

const INSERT: &str = "INSERT INTO outbox.outbox
        (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, class, available_at)
    VALUES ($1, $2, $3, $4, $5, coalesce($6, current_setting('app.current_tenant')), $7::json, $8::json,
        CASE WHEN coalesce($9, $10) IS NULL THEN 'fresh' ELSE 'scheduled' END,
        coalesce($9::timestamptz, now() + $10::interval))
    ON CONFLICT DO NOTHING";

const FUNCTION: &str = "SELECT outbox.outbox_publish($2, $7::json, id => $1, aggregate_type => $3, aggregate_id => $4,
    ordering_key => $5, tenant_id => $6, headers => $8::json, deliver_at => $9::timestamptz, delay => $10::interval)";

/// A session of each driver.
struct Sessions {
    publisher: PgPublisher,
    sqlx: PgConnection,
    tokio_postgres: tokio_postgres::Client,
    diesel_async: AsyncPgConnection,
    sea_orm: DatabaseConnection,
}

impl Sessions {
    async fn open(world: &World) -> Self {
        let url = world.database.url();
        let (tokio_postgres, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let mut one = sea_orm::ConnectOptions::new(url);
        one.max_connections(1);
        Self {
            publisher: PgPublisher::new(&Names::default()).stamped(|headers| {
                headers.insert("traceparent".to_owned(), "00-1".to_owned());
            }),
            sqlx: PgConnection::connect(url).await.unwrap(),
            tokio_postgres,
            diesel_async: AsyncPgConnection::establish(url).await.unwrap(),
            sea_orm: sea_orm::Database::connect(one).await.unwrap(),
        }
    }

    /// Makes it the tenant of every session.
    async fn enter(&mut self, tenant: &str) {
        let sql = format!("SET app.current_tenant = '{tenant}'");
        sqlx::query(AssertSqlSafe(sql.clone()))
            .execute(&mut self.sqlx)
            .await
            .unwrap();
        self.tokio_postgres.batch_execute(&sql).await.unwrap();
        diesel::sql_query(&sql)
            .execute(&mut self.diesel_async)
            .await
            .unwrap();
        self.sea_orm.execute_unprepared(&sql).await.unwrap();
    }

    /// Publishes an event, and returns how many events are new.
    async fn publish(&mut self, way: Way, event: NewEvent) -> u64 {
        let (publisher, sqlx) = (&self.publisher, &mut self.sqlx);
        let published = match way {
            Way::Insert => return by_sql(INSERT, event).execute(sqlx).await.unwrap().rows_affected(),
            Way::Function => {
                let row = by_sql(FUNCTION, event).fetch_one(sqlx).await.unwrap();
                return row.get::<bool, _>(0).into();
            }
            Way::Statement => {
                let (sql, parameters) = publisher.statement(event).unwrap().into_parts();
                let mut query = sqlx::query(AssertSqlSafe(sql.to_string()));
                for parameter in parameters {
                    query = query.bind(parameter);
                }
                return query.execute(sqlx).await.unwrap().rows_affected();
            }
            Way::Publish => publisher.publish(sqlx, event).await,
            Way::PublishAll => publisher.publish_all(sqlx, [event]).await,
            Way::TokioPostgres => {
                publisher
                    .publish_tokio_postgres(&self.tokio_postgres, event)
                    .await
            }
            Way::DieselAsync => {
                publisher
                    .publish_diesel_async(&mut self.diesel_async, event)
                    .await
            }
            Way::SeaOrm => publisher.publish_sea_orm(&self.sea_orm, event).await,
        };
        let published = published.unwrap();
        assert_eq!(published.new + published.known, 1, "{way:?}");
        published.new
    }
}

/// A statement of ours with the event's values, the publisher's stamp among them.
fn by_sql(
    sql: &'static str,
    event: NewEvent,
) -> sqlx::query::Query<'static, sqlx::Postgres, sqlx::postgres::PgArguments> {
    let event = event.with_header("traceparent", "00-1");
    let (at, delay) = match event.due {
        Due::AtOnce => (None, None),
        Due::At(instant) => (Some(instant.to_string()), None),
        Due::After(delay) => (None, Some(format!("{} s", delay.as_secs_f64()))),
    };
    let text = |text: &dyn AsRef<str>| text.as_ref().to_owned();
    sqlx::query(sql)
        .bind(event.id.as_uuid())
        .bind(text(&event.event_type))
        .bind(event.aggregate_type.as_ref().map(|name| text(name)))
        .bind(event.aggregate_id.as_ref().map(|id| text(id)))
        .bind(event.ordering_key.as_ref().map(|key| text(key)))
        .bind(event.tenant_id.as_ref().map(|id| text(id)))
        .bind(event.payload.as_str().to_owned())
        .bind(serde_json::to_string(&event.headers).unwrap())
        .bind(at)
        .bind(delay)
}

/// What an event's row says, but for what differs from one event to the next.
async fn row(world: &World, id: EventId) -> String {
    let sql =
        "SELECT (to_jsonb(event) - ARRAY['id', 'seq', 'created_at', 'available_at'] || jsonb_build_object(
            'payload', payload::text, 'headers', headers::text, 'due at', available_at,
            'due after', round(extract(epoch FROM available_at - created_at)),
            'new', created_at BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()))::text
        FROM outbox.outbox AS event WHERE id = $1";
    let row = sqlx::query(sql).bind(id.as_uuid()).fetch_one(world.pool());
    row.await.unwrap().get(0)
}

/// Events that give each column each kind of value between them, and the tenant of the session that publishes them.
fn cases() -> Vec<(&'static str, NewEvent)> {
    let full = event(r#"{"a":  "\u00e4 'quoted' $1"}"#)
        .with_ordering_key(OrderingKey::new("k'1 é").unwrap())
        .with_tenant(TenantId::new("t\"1").unwrap())
        .with_header("empty", "")
        .with_header("lines", "a\n\"b\"\\");
    let mut about = full.clone().with_delay(Duration::from_millis(3_600_000));
    about.aggregate_type = Some(AggregateType::new("order").unwrap());
    about.aggregate_id = Some(AggregateId::new("№ 7").unwrap());
    let at = |text: &str| event("[1e400, null]").deliver_at(text.parse::<Timestamp>().unwrap());
    vec![
        ("", event("1")),
        ("inherited", event("1")),
        // Nobody's, whoever's transaction it is.
        ("inherited", event("1").with_tenant(TenantId::default())),
        ("", full),
        ("", about),
        ("inherited", at("2031-02-03T04:05:06.789012Z")),
        ("", at("1970-01-01T00:00:00Z")),
    ]
}

#[tokio::test]
async fn every_way_writes_the_same_row() {
    let world = World::new().await;
    let mut sessions = Sessions::open(&world).await;
    let mut given = [false; 10];

    for (session_tenant, case) in cases() {
        sessions.enter(session_tenant).await;
        let mut expected = None;
        for way in WAYS {
            let event = case.clone().with_id(EventId::new());
            let id = event.id;
            let statement = sessions.publisher.statement(event.clone()).unwrap();
            for (given, parameter) in given.iter_mut().zip(statement.parameters()) {
                *given |= parameter.is_some();
            }

            assert_eq!(sessions.publish(way, event.clone()).await, 1, "{way:?}: {case:?}");
            assert_eq!(sessions.publish(way, event).await, 0, "{way:?}: {case:?}");

            let mut row = row(&world, id).await;
            if matches!(case.due, Due::After(_)) {
                assert!(row.contains(r#""due after": 3600"#), "{row}");
                row = without(&row, "due at");
            } else {
                row = without(&row, "due after");
            }
            assert_eq!(&row, expected.get_or_insert(row.clone()), "{way:?}");
        }
    }
    assert_eq!(given, [true; 10], "a parameter that no case gives a value");
    sessions.sea_orm.close().await.unwrap();
}

/// A JSON object without one of its members.
fn without(object: &str, member: &str) -> String {
    let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(object).unwrap();
    object.remove(member).unwrap();
    serde_json::to_string(&object).unwrap()
}

#[tokio::test]
async fn a_publisher_of_nobodys_events_inherits_no_tenant() {
    let world = World::new().await;
    let mut sessions = Sessions::open(&world).await;
    sessions.publisher = sessions.publisher.with_tenant(TenantId::default());
    sessions.enter("inherited").await;

    let through_it = &WAYS[2..];
    for way in through_it {
        assert_eq!(sessions.publish(*way, event("1")).await, 1, "{way:?}");
    }
    let mixed = [event("2"), event("2").with_tenant(TenantId::new("t").unwrap())];
    let published = sessions.publisher.publish_all(&mut sessions.sqlx, mixed).await;
    assert_eq!(published.unwrap().new, 2);

    let nobodys = i64::try_from(through_it.len()).unwrap() + 1;
    assert_eq!(world.count("tenant_id = ''").await, nobodys);
    assert_eq!(world.count("tenant_id = 't'").await, 1);
    sessions.sea_orm.close().await.unwrap();
}
