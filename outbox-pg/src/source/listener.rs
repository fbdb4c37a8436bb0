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
//! polls from now on, it gives up the lock and tells the others, on a channel of their own, to wake.
//!
//! # Failure
//! Losing the connection loses the lock with it. The relay polls at the fallback interval until it listens again, and
//! then looks at once. A connection that went silent shows by a ping, which a sleeper sends in each half of the fallback:
//! while one has no answer for the other half, the relay polls too. So a deaf sleeper finds an event within the fallback.
//! If the sleeper that keeps watch dies, another one takes the lock when it next asks, every two seconds.
//!
//! Nobody notifies when a schedule or a retry falls due, or when the lease of a relay that is gone ends. Every sleeper asks
//! every two seconds when that will be, and has the relay look then. It finds, too, what one that keeps watch and is frozen
//! left lying.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, Connection, PgPool, Row};
use tokio::time::{Instant, timeout, timeout_at};

use super::ears::{Ears, Hearing};
use super::pace::Crowd;
use crate::sql::Sql;

/// How long a relay polls at least, once it is woken.
const VIGIL: Duration = Duration::from_millis(100);
/// How often a sleeper asks what will be due, and one without the lock tries for it.
const ASK: Duration = Duration::from_secs(2);
/// And how long after it was notified: what was published may be due later.
const ASK_SOON: Duration = Duration::from_millis(250);
/// How long a statement of the listener may take until its connection counts as lost.
const DEADLINE: Duration = Duration::from_secs(5);
/// A sleeper looks no more often than this, when the end of a lease is past and the relay did not take its events.
const DUE_GRAIN: Duration = Duration::from_millis(50);
/// A relay that has not begun to look so long after it was told to has no room.
const HURRY: Duration = Duration::from_millis(50);
/// The pause between polls of a relay that is awake grows from the first to the second.
pub(super) const POLL_MIN: Duration = Duration::from_millis(1);
pub(super) const POLL_MAX: Duration = Duration::from_millis(100);

/// What the listener needs to know.
#[derive(Debug, Clone)]
pub(super) struct Listener {
    pub(super) ears: Arc<Ears>,
    /// Connections like those of the relay; the listener takes one for itself.
    pub(super) pool: PgPool,
    pub(super) channel: String,
    pub(super) lock: i64,
    pub(super) next_due: Sql,
    /// How late an event may be found that the listener should have heard of.
    pub(super) fallback: Duration,
}

/// Why a session of the listener ended.
type Ended = sqlx::Error;

/// What a publisher says that met another one. Others say nothing.
const CROWD: &str = "crowd";

/// What ended a nap.
#[derive(PartialEq, Eq)]
enum Woken {
    /// The relay is to poll.
    Up,
    Rested,
}

impl Listener {
    /// Listens for ever, reconnecting with growing pauses.
    pub(super) async fn run(self) {
        let mut pause = Duration::from_millis(100);
        let mut told = false;
        loop {
            let began = Instant::now();
            let ended = match self.connect().await {
                Ok(listener) => {
                    if std::mem::take(&mut told) {
                        tracing::info!(channel = self.channel, "outbox_listener_up");
                    }
                    self.session(listener).await.err()
                }
                Err(error) => Some(error),
            };
            self.ears.set(Hearing::Down);
            if !told {
                let error = ended.map(|error| error.to_string());
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
        let mut listener = PgListener::connect_with(&own).await?;
        listener.eager_reconnect(false);
        within(listener.listen(&self.relays_channel())).await?;
        Ok(listener)
    }

    /// On which sleepers are told to wake: by the one that kept watch, and by `outbox_wake_now`.
    fn relays_channel(&self) -> String {
        format!("outbox_relays_{}", self.lock)
    }

    async fn session(&self, mut listener: PgListener) -> Result<(), Ended> {
        self.ears.set(Hearing::Awake);
        let mut awake_until = Instant::now();
        loop {
            let mut on_watch = self.fall_asleep(&mut listener, awake_until).await?;
            // ORDER: asleep first, then the hint that comes with it, so that the relay looks once more.
            self.ears.set(Hearing::Asleep);
            self.sleep(&mut listener, &mut on_watch).await?;
            // ORDER: awake before the lock is given up, or publishers would keep quiet for one that still sleeps.
            self.ears.set(Hearing::Awake);
            awake_until = Instant::now() + VIGIL;
            if on_watch {
                within(self.end_watch(&mut listener)).await?;
            }
        }
    }

    /// Takes the sleeper's lock, if it is free, and listens to publishers. What was published in between is there to be found.
    async fn begin_watch(&self, listener: &mut PgListener) -> Result<bool, Ended> {
        let lock = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(self.lock);
        let locked = lock.fetch_one(&mut *listener).await?;
        if locked {
            listener.listen(&self.channel).await?;
        }
        Ok(locked)
    }

    async fn end_watch(&self, listener: &mut PgListener) -> Result<(), Ended> {
        let unlock = sqlx::query("SELECT pg_advisory_unlock($1)").bind(self.lock);
        unlock.execute(&mut *listener).await?;
        listener.unlisten(&self.channel).await?;
        let wake = sqlx::query("SELECT pg_notify($1, '')").bind(self.relays_channel());
        wake.execute(listener).await?;
        Ok(())
    }

    /// Waits until the relay may sleep. Returns whether this session keeps watch; if not, another one does.
    async fn fall_asleep(&self, listener: &mut PgListener, awake_until: Instant) -> Result<bool, Ended> {
        let mut pause = POLL_MIN;
        loop {
            let until = awake_until.max(Instant::now() + pause);
            match timeout_at(until, listener.try_recv()).await {
                Err(_) => {}
                Ok(Ok(Some(_))) => self.ears.hint.notify_one(),
                Ok(Ok(None)) => return Err(sqlx::Error::WorkerCrashed),
                Ok(Err(error)) => return Err(error),
            }
            if Instant::now() < awake_until {
                continue;
            }
            // A publisher may be open that saw this relay awake: then nobody gets the lock.
            pause = (pause * 2).min(POLL_MAX);
            if !self.ears.is_idle() {
                continue;
            }
            if within(self.begin_watch(listener)).await? {
                return Ok(true);
            }
            if self.another_sleeps(listener).await? {
                return Ok(false);
            }
        }
    }

    /// Sleeps until the relay should poll.
    async fn sleep(&self, listener: &mut PgListener, on_watch: &mut bool) -> Result<(), Ended> {
        let mut crowd = Crowd::default();
        loop {
            let due = self.answered(self.next_due(listener)).await?;
            let asked = Instant::now();
            let due = due.map(|due| asked + due.max(DUE_GRAIN));
            let until = due.map_or(asked + ASK, |due| due.min(asked + ASK));
            if self.nap(listener, until, &mut crowd).await? == Woken::Up {
                return Ok(());
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                self.ears.hint.notify_one();
            }
            if !*on_watch {
                // The sleeper whose lock this one relied on may be gone: take over, and look once more.
                *on_watch = self.answered(self.begin_watch(listener)).await?;
                if *on_watch {
                    self.ears.hint.notify_one();
                }
            }
        }
    }

    /// Sleeps no longer than `until`, with a ping in each half of the fallback.
    async fn nap(
        &self,
        listener: &mut PgListener,
        mut until: Instant,
        crowd: &mut Crowd,
    ) -> Result<Woken, Ended> {
        loop {
            let ping = Instant::now() + self.patience();
            let heard = tokio::select! {
                heard = timeout_at(ping.min(until), listener.try_recv()) => heard,
                () = self.ears.stirred.notified() => return Ok(Woken::Up),
            };
            match heard {
                Ok(Ok(Some(said))) if said.channel() != self.channel => return Ok(Woken::Up),
                Ok(Ok(Some(said))) => {
                    if crowd.heard(said.payload() == CROWD) || !self.relay_looks().await {
                        return Ok(Woken::Up);
                    }
                    until = until.min(Instant::now() + ASK_SOON);
                }
                Ok(Ok(None)) => return Err(sqlx::Error::WorkerCrashed),
                Ok(Err(error)) => return Err(error),
                Err(_) if Instant::now() >= until => return Ok(Woken::Rested),
                Err(_) => {
                    self.answered(async { listener.acquire().await?.ping().await })
                        .await?;
                }
            }
        }
    }

    /// Has the relay look; whether it has begun to.
    async fn relay_looks(&self) -> bool {
        let mut looks = self.ears.looks.subscribe();
        self.ears.hint.notify_one();
        timeout(HURRY, looks.changed()).await.is_ok()
    }

    /// The answer to a sleeper. While it is late the relay polls, since a notification may be lost or late as well.
    async fn answered<T>(&self, statement: impl Future<Output = Result<T, Ended>>) -> Result<T, Ended> {
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
    fn patience(&self) -> Duration {
        (self.fallback / 2).clamp(Duration::from_millis(50), ASK)
    }

    /// When something becomes due that nobody announces.
    async fn next_due(&self, listener: &mut PgListener) -> Result<Option<Duration>, Ended> {
        let row = self.next_due.query().fetch_one(listener).await?;
        let ms: Option<f64> = row.try_get(0)?;
        Ok(ms.map(|ms| Duration::from_millis(ms.clamp(0.0, 1e9) as u64 + 1)))
    }

    async fn another_sleeps(&self, listener: &mut PgListener) -> Result<bool, Ended> {
        within(
            sqlx::query_scalar(include_str!("../../sql/another_sleeps.sql"))
                .bind(self.lock)
                .fetch_one(listener),
        )
        .await
    }
}

/// A statement of the listener, given up after the deadline.
async fn within<T>(statement: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    timeout(DEADLINE, statement)
        .await
        .unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
