//! What a claim takes beside millions of pending or settled events, and on an empty table.

use std::time::Instant;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use crate::harness::{Lab, Report, Size, Target, median};

const CLAIM: &str =
    "SELECT * FROM outbox.outbox_claim(gen_random_uuid(), 1, 100, 100000000, interval '1 minute', '{}')";
const TURNS: usize = 21;

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    // Ten millions and five, at the size of a million.
    let (pending, settled) = (size.events * 10, size.events * 5);
    let mut report = Report::new("claims");
    report.fact("pending", pending);
    report.fact("settled", settled);
    let mut scenes = Vec::new();
    for (label, settled, pending) in [
        ("empty", 0, 200),
        ("many pending", 0, pending),
        ("many settled", settled, 200),
    ] {
        let database = Lab::outbox_on(&lab.server).await;
        let mut connection = PgConnection::connect(database.url()).await.unwrap();
        insert(&mut connection, settled).await;
        let settle = "UPDATE outbox.outbox SET status = 'completed', processed_at = now()";
        connection.execute(settle).await.unwrap();
        insert(&mut connection, pending).await;
        follow(&mut connection).await;
        connection.execute("VACUUM ANALYZE outbox.outbox").await.unwrap();
        scenes.push((label, connection, database));
    }
    for _ in 0..size.rounds {
        for (label, connection, _) in &mut scenes {
            let ms = claim_ms(connection).await;
            report.add(label, &[("claim ms", ms)]);
        }
    }
    report.compare("claim ms", "many pending", "empty", Target::AtMost(1.5));
    report.compare("claim ms", "many settled", "empty", Target::AtMost(1.5));
    report.finish();
}

/// Moves the mark past what is settled, as relays do while they settle it.
async fn follow(connection: &mut PgConnection) {
    let candidate = "SELECT candidate, writers FROM outbox.outbox_mark_candidate()";
    let row = sqlx::query(candidate).fetch_one(&mut *connection).await.unwrap();
    if let Some(candidate) = row.get::<Option<i64>, _>(0) {
        let moved = sqlx::query("SELECT outbox.outbox_mark_move($1, $2)")
            .bind(candidate)
            .bind(row.get::<Vec<String>, _>(1));
        assert!(moved.fetch_one(connection).await.unwrap().get::<bool, _>(0));
    }
}

async fn insert(connection: &mut PgConnection, events: usize) {
    let sql = format!(
        "INSERT INTO outbox.outbox (id, event_type, payload)
        SELECT gen_random_uuid(), 'OrderPlaced', json_build_object('order', n, 'note', repeat('x', 310))
        FROM generate_series(1, {events}) AS event (n)"
    );
    connection.execute(AssertSqlSafe(sql)).await.unwrap();
}

/// The median of some claims of 100, each taken back at once.
pub(crate) async fn claim_ms(connection: &mut PgConnection) -> f64 {
    let mut times = Vec::new();
    for turn in 0..TURNS + 3 {
        let mut transaction = connection.begin().await.unwrap();
        let began = Instant::now();
        let rows = sqlx::query(CLAIM).fetch_all(&mut *transaction).await.unwrap();
        assert_eq!(rows.len(), 1, "nothing to claim");
        // The first ones of a session make plans.
        if turn >= 3 {
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        transaction.rollback().await.unwrap();
    }
    median(&times)
}
