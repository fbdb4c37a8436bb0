//! The end of a run: what the table says goes into the history, and the history is judged.

use std::path::Path;
use std::time::{Duration, Instant};

use outbox::BoxError;
use sqlx::{PgConnection, Row};

use crate::history::{History, Verdict, What, check, read};

/// Waits until nothing is pending.
///
/// # Errors
/// Something still is after `patience`, or the database cannot be asked.
pub async fn until_drained(connection: &mut PgConnection, patience: Duration) -> Result<(), BoxError> {
    let deadline = Instant::now() + patience;
    loop {
        let pending: i64 = sqlx::query_scalar("SELECT count(*) FROM outbox.outbox WHERE status = 'pending'")
            .fetch_one(&mut *connection)
            .await?;
        if pending == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{pending} events are still pending after {patience:?}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Adds the table to the history, and judges all of it.
///
/// # Errors
/// The table or the history cannot be read.
pub async fn judge(connection: &mut PgConnection, folder: &Path) -> Result<Verdict, BoxError> {
    let table = History::open(folder, "table")?;
    let rows = sqlx::query("SELECT id, status, retry_count, seq, error FROM outbox.outbox ORDER BY seq")
        .fetch_all(connection)
        .await?;
    for row in rows {
        table.write(What::Row {
            event: row.try_get(0)?,
            status: row.try_get(1)?,
            retry_count: row.try_get(2)?,
            seq: row.try_get(3)?,
            error: row.try_get(4)?,
        })?;
    }
    Ok(check(&read(folder)?))
}
