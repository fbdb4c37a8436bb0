//! Somebody who redrives what has failed.

use outbox::BoxError;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::history::{History, What};

/// Makes all failed events pending again, marked so that their handlers know; returns how many.
///
/// # Errors
/// The database refuses, or the history cannot be written.
pub async fn redrive(connection: &mut PgConnection, history: &History) -> Result<usize, BoxError> {
    let mut transaction = connection.begin().await?;
    sqlx::query("SELECT pg_advisory_xact_lock(outbox.outbox_lock_number(1))")
        .execute(&mut *transaction)
        .await?;
    let failed: Vec<(Uuid, i64)> = sqlx::query_as(
        r#"UPDATE outbox.outbox SET headers = '{"redriven": "yes"}' WHERE status = 'failed' RETURNING id, seq"#,
    )
    .fetch_all(&mut *transaction)
    .await?;
    let (ids, seqs): (Vec<Uuid>, Vec<i64>) = failed.into_iter().unzip();
    // Written down first: relays are fast.
    for event in &ids {
        history.write(What::Redriven {
            event: *event,
            ends: "completed".to_owned(),
        })?;
    }
    sqlx::query("SELECT outbox.outbox_change_failed('redrive', $1, $2, clock_timestamp())")
        .bind(&ids)
        .bind(seqs)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(ids.len())
}
