//! What an event costs the server, in counts that no busy machine changes: statements, blocks touched, bytes of WAL.
//! Compared with committed figures, so that a regression is seen without timing anything.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Duration;

use outbox_core::{NewEvent, OrderingKey, Outcome, Source};
use outbox_dev::{DevPostgres, ServerOptions, TestDatabase};
use outbox_pg::{Names, PgPublisher, PgSource, migrate};
use sqlx::{Connection, PgConnection, Row};
use support::{claim, event, outcome};
use tokio::time::Instant;

const BATCH: usize = 500;
const BATCHES: usize = 40;

/// What was measured when this was committed, on PostgreSQL 15. One that has become better is committed anew.
const COMMITTED: [(&str, Cost); 3] = [
    (
        "publish",
        Cost {
            statements: 1.0,
            blocks: 9.2,
            wal: 697.0,
        },
    ),
    (
        "drain",
        Cost {
            statements: 3.3,
            blocks: 5.1,
            wal: 167.0,
        },
    ),
    (
        "drain, 1000 keys",
        Cost {
            statements: 3.2,
            blocks: 5.2,
            wal: 170.0,
        },
    ),
];

/// Statements per batch; blocks and bytes of WAL per event.
#[derive(Debug, Clone, Copy)]
struct Cost {
    statements: f64,
    blocks: f64,
    wal: f64,
}

/// A server that does nothing by itself, so that all it counts is ours.
async fn server() -> DevPostgres {
    let settings = [
        ("autovacuum", "off"),
        ("checkpoint_timeout", "1d"),
        ("full_page_writes", "off"),
        ("track_functions", "pl"),
    ];
    let options = settings
        .into_iter()
        .fold(ServerOptions::default(), |options, (name, value)| {
            options.with_setting(name, value)
        });
    DevPostgres::start_own(options).await.unwrap()
}

struct Counters {
    statements: i64,
    blocks: i64,
    wal: i64,
}

/// Reads the counters once all other sessions have ended: a session hands its counts in when it ends at the latest.
async fn counters(database: &TestDatabase) -> Counters {
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let others = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    let deadline = Instant::now() + Duration::from_secs(60);
    while sqlx::query_scalar::<_, i64>(others)
        .fetch_one(&mut connection)
        .await
        .unwrap()
        > 0
    {
        assert!(Instant::now() < deadline, "sessions do not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    connection.close().await.unwrap();
    // The marker moves by the clock, so its statements are not counted.
    let sql = "SELECT xact_commit - coalesce((SELECT sum(calls)::bigint FROM pg_stat_user_functions
                WHERE funcname ~ '_(mark_candidate|mark_move|sweep)$'), 0),
            blks_hit + blks_read, (pg_current_wal_insert_lsn() - '0/0')::bigint
        FROM pg_stat_database WHERE datname = current_database()";
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    let row = sqlx::query(sql).fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    Counters {
        statements: row.get(0),
        blocks: row.get(1),
        wal: row.get(2),
    }
}

/// What one more batch costs: the start of the sessions, and reading the counters, cost the same for one as for many.
async fn measure<W: Future<Output = ()>>(database: &TestDatabase, work: impl Fn(usize) -> W) -> Cost {
    let before = counters(database).await;
    work(1).await;
    let between = counters(database).await;
    work(1 + BATCHES).await;
    let after = counters(database).await;
    let spent = |read: fn(&Counters) -> i64| (read(&after) - 2 * read(&between) + read(&before)) as f64;
    let events = (BATCHES * BATCH) as f64;
    Cost {
        statements: spent(|counters| counters.statements) / BATCHES as f64,
        blocks: spent(|counters| counters.blocks) / events,
        wal: spent(|counters| counters.wal) / events,
    }
}

async fn publish(database: &TestDatabase, batches: usize, keys: usize) {
    let publisher = PgPublisher::new(&Names::default());
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    for batch in 0..batches {
        let events = (batch * BATCH..(batch + 1) * BATCH).map(|n| one(n, keys));
        publisher.publish_all(&mut connection, events).await.unwrap();
    }
    connection.close().await.unwrap();
}

fn one(n: usize, keys: usize) -> NewEvent {
    let event = event(&format!(r#"{{"n":{n},"note":"{}"}}"#, "x".repeat(300)));
    match keys {
        0 => event,
        keys => event.with_ordering_key(OrderingKey::new(format!("order-{}", n % keys)).unwrap()),
    }
}

async fn drain(database: &TestDatabase, batches: usize) {
    let options = database.connect_options();
    let source = PgSource::builder(options).poll_only().start().await.unwrap();
    for _ in 0..batches {
        let claimed = claim(&source, u32::try_from(BATCH).unwrap()).await;
        assert_eq!(claimed.len(), BATCH);
        let settlements = claimed.iter().map(|event| outcome(event, Outcome::Completed));
        let settled = source.settle(settlements.collect()).await.unwrap();
        assert_eq!(settled.lost, []);
    }
}

#[tokio::test]
async fn an_event_costs_no_more_than_it_did() {
    let server = server().await;
    let database = TestDatabase::create_on(&server).await.unwrap();
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    migrate(&mut connection, &Names::default()).await.unwrap();
    connection.close().await.unwrap();

    let published = measure(&database, |batches| publish(&database, batches, 0)).await;
    let drained = measure(&database, |batches| drain(&database, batches)).await;
    publish(&database, BATCHES + 2, 1000).await;
    let drained_by_key = measure(&database, |batches| drain(&database, batches)).await;
    let measured = [published, drained, drained_by_key];

    println!("{measured:#?}");
    for ((name, committed), measured) in COMMITTED.into_iter().zip(measured) {
        check(
            name,
            "statements per batch",
            measured.statements,
            committed.statements,
        );
        check(name, "blocks per event", measured.blocks, committed.blocks);
        check(name, "bytes of WAL per event", measured.wal, committed.wal);
    }
}

/// A tenth more is a regression; a quarter less is good news that the committed figure should tell.
fn check(name: &str, what: &str, measured: f64, committed: f64) {
    assert!(
        measured < committed * 1.1 + 0.5,
        "{name}: {measured:.1} {what}, {committed} were committed"
    );
    assert!(
        measured > committed * 0.75 - 0.5,
        "{name}: only {measured:.1} {what}: commit that instead of {committed}"
    );
}
