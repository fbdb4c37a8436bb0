//! Being woken: a pooler in between, LISTEN, and the server's queue of notifications.

use std::time::{Duration, Instant};

use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection};

use super::check::Check;
use super::{Patient, ask, unseen};

/// How long a notification may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Whether there is a pooler in between.
pub(super) async fn look(patient: &Patient<'_>, checks: &mut Vec<Check>) -> Result<bool, sqlx::Error> {
    let pooled = pooler(patient).await?;
    checks.push(match pooled {
        false => Check::ok("pooler", "connections have server sessions of their own"),
        true => Check::look(
            "pooler",
            "two connections shared one server session: a pooler in transaction mode is in between",
            "connect the relay directly by JOBS_DB_URL; or build its source with pooler(): it polls then, and LISTEN does not work",
        ),
    });
    checks.push(match pooled {
        false => listen(patient).await,
        // The session would go on listening for whoever gets it next.
        true => Check::look(
            "listen",
            "not tried: behind a pooler in transaction mode, LISTEN is lost with the next statement",
            "LISTEN needs a session of its own: connect the relay directly, or build its source with pooler()",
        ),
    });
    let mut connection = patient.connect().await?;
    let usage = ask::<f64>(&mut connection, "SELECT pg_notification_queue_usage()").await;
    checks.push(match usage {
        Err(error) => unseen("notify queue", &error),
        Ok(usage) if usage < 0.1 => Check::ok("notify queue", format!("{:.1} % full", usage * 100.0)),
        Ok(usage) => Check::wrong(
            "notify queue",
            format!("{:.1} % full; when it is full, every commit that notifies fails", usage * 100.0),
            "end the session that listens and stays in a transaction (see the server's log); until then publish with outbox.wake = 'never'",
        ),
    });
    Ok(pooled)
}

/// Only behind a pooler does a connection get the session that another one had, or another one than before.
async fn pooler(patient: &Patient<'_>) -> Result<bool, sqlx::Error> {
    let mut first = patient.connect().await?;
    let mut second = patient.connect().await?;
    let mut before = None;
    // A busy pooler hands out other sessions in between.
    for _ in 0..20 {
        let one: i32 = ask(&mut first, "SELECT pg_backend_pid()").await?;
        let mut transaction = second.begin().await?;
        let other: i32 = ask(&mut transaction, "SELECT pg_backend_pid()").await?;
        transaction.rollback().await?;
        if one == other || before.is_some_and(|before| before != one) {
            return Ok(true);
        }
        before = Some(one);
    }
    Ok(false)
}

/// On a channel of its own, so that no relay is woken.
async fn listen(patient: &Patient<'_>) -> Check {
    const NAME: &str = "listen";
    let trip = async {
        let mut connection = patient.connect().await?;
        let channel = format!(
            "outbox_doctor_{}",
            ask::<i32>(&mut connection, "SELECT pg_backend_pid()").await?
        );
        let mut listener = PgListener::connect_with(&patient.pool).await?;
        listener.listen(&channel).await?;
        let sent = Instant::now();
        // The channel is letters and digits of our own making.
        let notify = format!("SELECT pg_notify('{channel}', '')");
        sqlx::raw_sql(AssertSqlSafe(notify))
            .execute(&mut *connection)
            .await?;
        listener.recv().await?;
        Ok::<_, sqlx::Error>(sent.elapsed())
    };
    let remedy = "relays poll meanwhile; look at the server's log, and at what stands between here and there";
    match tokio::time::timeout(PATIENCE, trip).await {
        Ok(Ok(took)) => Check::ok(
            NAME,
            format!("a notification came back after {} ms", took.as_millis()),
        ),
        Ok(Err(error)) => Check::look(NAME, crate::exit::chain(&error), remedy),
        Err(_) => Check::look(
            NAME,
            format!("no notification within {} s", PATIENCE.as_secs()),
            remedy,
        ),
    }
}
