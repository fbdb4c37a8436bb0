//! Hearing of new events, and the handshake that lets publishers keep quiet while a relay is awake.
//!
//! ```text
//!            few events, lock 2 taken (or another sleeper has it)
//!   awake ───────────────────────────────────────────────────▶ asleep ◀──▶ unsure
//!     ▲  polls every few ms                                      │ LISTENs, pings   polls: a ping is not answered
//!     └────────── many events, or publishers that crowd ─────────┘
//!     ▲                                                          │
//!     └──────────────── connected, LISTENing ◀── down ◀──────────┘ connection lost
//! ```
//!
//! # Time
//! A publisher that commits while the relay is awake is heard by the next poll. One that commits while a relay is
//! asleep sees lock 2 taken and notifies. In between, the shared lock of a publisher that saw the relay awake keeps the
//! relay from falling asleep until that publisher has ended; after falling asleep the relay looks once more.
//!
//! While events are few, a relay looks at each notification and stays asleep: that is sooner than the next poll would be,
//! and less work. Publishers that notify commit one after the other, though. So once there are many events, or most
//! publishers meet another one that notifies, the relay wakes and polls.
//!
//! Of several sleepers the one with the lock keeps watch: it alone listens to publishers. If its relay has no room, or
//! polls from now on, it gives up the lock and tells the others, on a channel of their own, to wake. If it is frozen, or the
//! lock is that of a connection whose end the server has not seen, the others find what is overdue, and listen too.
//!
//! # Failure
//! Losing the connection loses the lock with it. The relay polls at the fallback interval until it listens again, and
//! then looks at once. A connection that went silent shows by a ping, which a sleeper sends in each half of the fallback:
//! while one has no answer for the other half, the relay polls too. So a deaf sleeper finds an event within the fallback.
//! If the sleeper that keeps watch dies, another one takes the lock when it next asks, every two seconds.
//!
//! Nobody notifies when a schedule or a retry falls due, or when the lease of a relay that is gone ends. Every sleeper asks
//! every two seconds when that will be, and has the relay look then.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, Executor, PgPool, Row};
use tokio::time::{Instant, timeout};

use super::ears::{Ears, Hearing};
use super::sleeper::Sleeper;
use crate::sql::Sql;

/// How often a sleeper asks what will be due, and one that is not on watch tries for it.
pub(super) const ASK: Duration = Duration::from_secs(2);
/// How long a statement of the listener may take until its connection counts as lost.
const DEADLINE: Duration = Duration::from_secs(5);
/// The pause between polls of a relay that is awake grows from the first to the second.
pub(super) const POLL_MIN: Duration = Duration::from_millis(1);
pub(super) const POLL_MAX: Duration = Duration::from_millis(100);

/// What the listener needs to know.
#[derive(Debug, Clone)]
pub(super) struct Listener {
    pub(super) ears: Arc<Ears>,
    /// Connections like those of the relay; the listener takes one for itself.
    pub(super) pool: PgPool,
    /// Where publishers notify.
    pub(super) channel: String,
    /// The number of the sleepers' lock.
    pub(super) lock: i64,
    pub(super) next_due: Sql,
    /// How late an event may be found that the listener should have heard of.
    pub(super) fallback: Duration,
}

/// Why a session of the listener ended.
pub(super) type Ended = sqlx::Error;

impl Listener {
    /// Listens for ever, reconnecting with growing pauses.
    pub(super) async fn run(self) {
        let mut pause = Duration::from_millis(100);
        let mut told = false;
        loop {
            let began = Instant::now();
            let ended = match self.connect().await {
                Ok(session) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(channel = self.channel, "outbox_listener_up");
                    }
                    Sleeper::new(&self, session).run().await
                }
                Err(error) => error,
            };
            self.ears.set(Hearing::Down);
            if !told {
                let error = ended.to_string();
                tracing::warn!(channel = self.channel, error, "outbox_listener_down");
                told = true;
            }
            if began.elapsed() > Duration::from_secs(10) {
                pause = Duration::from_millis(100);
            }
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    }

    async fn connect(&self) -> Result<PgListener, Ended> {
        let own = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(DEADLINE)
            .connect_with((*self.pool.connect_options()).clone())
            .await?;
        let mut session = PgListener::connect_with(&own).await?;
        session.eager_reconnect(false);
        within(session.execute(include_str!("../../sql/session.sql"))).await?;
        // What is given up here must not go on there, with the lock.
        let timeout = format!("SET statement_timeout = {}", DEADLINE.as_millis());
        within(session.execute(AssertSqlSafe(timeout))).await?;
        // The lock of a connection that is gone keeps the others from their watch until the server sees its end.
        if let Err(error) = within(session.execute(include_str!("../../sql/keepalive.sql"))).await {
            tracing::debug!(%error, "the server keeps its own times of TCP");
        }
        within(session.listen(&self.relays_channel())).await?;
        Ok(session)
    }

    /// On which sleepers are told to wake: by the one that kept watch, and by `outbox_wake_now`.
    pub(super) fn relays_channel(&self) -> String {
        format!("outbox_relays_{}", self.lock)
    }

    /// The answer to a sleeper. While it is late the relay polls, since a notification may be lost or late as well.
    pub(super) async fn answered<T>(
        &self,
        statement: impl Future<Output = Result<T, Ended>>,
    ) -> Result<T, Ended> {
        let mut statement = std::pin::pin!(within(statement));
        if let Ok(answer) = timeout(self.patience(), &mut statement).await {
            return answer;
        }
        self.ears.set(Hearing::Unsure);
        let answer = statement.await?;
        // No hint: what was notified meanwhile is heard now, and a server that is only slow should not be asked more.
        self.ears.become_quietly(Hearing::Asleep);
        Ok(answer)
    }

    /// Half of the fallback: how long until a ping, and until one without an answer is doubted. Not so short that a network
    /// far away is doubted with each.
    pub(super) fn patience(&self) -> Duration {
        (self.fallback / 2).clamp(Duration::from_millis(50), ASK)
    }

    /// When something becomes due that nobody announces.
    pub(super) async fn next_due(&self, session: &mut PgListener) -> Result<Option<Duration>, Ended> {
        let row = self.next_due.query().fetch_one(session).await?;
        let ms: Option<f64> = row.try_get(0)?;
        Ok(ms.map(|ms| Duration::from_millis(ms.clamp(0.0, 1e9) as u64 + 1)))
    }

    pub(super) async fn another_sleeps(&self, session: &mut PgListener) -> Result<bool, Ended> {
        let query = sqlx::query_scalar(include_str!("../../sql/another_sleeps.sql")).bind(self.lock);
        query.fetch_one(session).await
    }
}

/// A statement of the listener, given up after the deadline.
pub(super) async fn within<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    timeout(DEADLINE, statement)
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
