//! The plainest relay there is: one transaction that locks 500 rows, reads them, marks them and commits. It can lose
//! nothing but has no leases: a slow handler would keep its transaction open.

use std::time::Instant;

use sqlx::{Connection, Executor, Row};

use crate::harness::Lab;

const TABLE: &str = "DROP TABLE IF EXISTS floor;
    CREATE TABLE floor (
        seq bigint PRIMARY KEY, id uuid, event_type text NOT NULL, payload json NOT NULL, headers json NOT NULL,
        status text NOT NULL DEFAULT 'pending', retry_count int NOT NULL DEFAULT 0, error text,
        created_at timestamptz NOT NULL, available_at timestamptz NOT NULL DEFAULT now(), processed_at timestamptz);
    INSERT INTO floor (seq, id, event_type, payload, headers, created_at)
        SELECT seq, id, event_type, payload, headers, created_at FROM outbox.outbox;
    CREATE INDEX ON floor (seq) WHERE status = 'pending'";
const CLAIM: &str = "SELECT seq, id, payload, headers, event_type, created_at, retry_count FROM floor
    WHERE status = 'pending' AND available_at <= now() ORDER BY seq LIMIT 500 FOR UPDATE SKIP LOCKED";
const MARK: &str = "UPDATE floor SET status = 'completed', processed_at = now() WHERE seq = ANY ($1)";

/// Drains a copy of the outbox, at the same durability and through the same client. Returns events per second, and µs of
/// the server's CPU per event.
pub(crate) async fn drain(lab: &Lab, events: usize, asynchronous: bool) -> (f64, f64) {
    let mut connection = lab.connect().await;
    connection.execute(TABLE).await.unwrap();
    connection.execute("VACUUM ANALYZE floor").await.unwrap();
    if asynchronous {
        connection.execute("SET synchronous_commit = off").await.unwrap();
    }
    connection
        .execute("SET plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    let (began, cpu) = (Instant::now(), lab.cpu());
    let mut done = 0;
    loop {
        let mut transaction = connection.begin().await.unwrap();
        let rows = sqlx::query(CLAIM).fetch_all(&mut *transaction).await.unwrap();
        if rows.is_empty() {
            break;
        }
        let seqs: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        let bytes = rows
            .iter()
            .map(|row| row.try_get_raw(2).unwrap().as_bytes().unwrap().len());
        assert!(bytes.sum::<usize>() > 0);
        done += seqs.len();
        sqlx::query(MARK)
            .bind(seqs)
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
    }
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(done, events);
    let cpu = (lab.cpu() - cpu) / events as f64 * 1e6;
    (events as f64 / seconds, cpu)
}
