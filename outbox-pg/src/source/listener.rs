//! Hearing of new events, and the handshake that lets publishers keep quiet while a relay is awake.
//!
//! ```text
//!            idle 100 ms, lock 2 taken (or another sleeper has it)
//!   awake ───────────────────────────────────────────────────▶ asleep ◀──▶ unsure
//!     ▲  polls every few ms                                      │ LISTENs, pings   polls: a ping is not answered
//!     └────────── notified, or the relay found events ───────────┘
//!     ▲                                                          │
//!     └──────────────── connected, LISTENing ◀── down ◀──────────┘ connection lost
//! ```
//!
//! # Time
//! A publisher that commits while the relay is awake is heard by the next poll. One that commits while a relay is
//! asleep sees lock 2 taken and notifies. In between, the shared lock of a publisher that saw the relay awake keeps the
//! relay from falling asleep until that publisher has ended; after falling asleep the relay looks once more.
//!
//! # Failure
//! Losing the connection loses the lock with it. The relay polls at the fallback interval until it listens again, and
//! then looks at once. A connection that went silent shows by a ping, which a sleeper sends in each half of the fallback:
//! while one has no answer for the other half, the relay polls too. So a deaf sleeper finds an event within the fallback.
//! A sleeper that wakes by itself notifies the others, which may sleep on the strength of its lock; if it dies instead,
//! one of them takes the lock when it next asks.
//!
//! Nobody notifies when a schedule or a retry falls due, or when the lease of a relay that is gone ends. A sleeper asks
//! every two seconds when that will be, and has the relay look then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, Connection, PgPool, Row};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::sql::Sql;

/// How long nothing must be found before a relay tries to sleep.
const IDLE: Duration = Duration::from_millis(100);
/// How often a sleeper asks what will be due, and one without the lock tries for it.
const ASK: Duration = Duration::from_secs(2);
/// How long a statement of the listener may take until its connection counts as lost.
const DEADLINE: Duration = Duration::from_secs(5);
/// A sleeper looks no more often than this, when the end of a lease is past and the relay did not take its events.
const DUE_GRAIN: Duration = Duration::from_millis(50);
/// The pause between polls of a relay that is awake grows from the first to the second.
pub(super) const POLL_MIN: Duration = Duration::from_millis(2);
pub(super) const POLL_MAX: Duration = Duration::from_millis(100);

/// What the listener and the relay tell each other.
#[derive(Debug)]
pub(super) struct Ears {
    /// Set when events may be due.
    pub(super) hint: Notify,
    /// Set when the relay found events by itself.
    found: Notify,
    state: AtomicU8,
    born: Instant,
    /// Milliseconds since birth at which a claim was last made, and last found something.
    last_claim: AtomicU64,
    last_found: AtomicU64,
    /// Whether the last claim came back full: there is more, surely.
    full: AtomicBool,
}

/// How the relay hears of new events at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Hearing {
    PollOnly,
    Down,
    Awake,
    Asleep,
    /// Asleep, and the server does not answer: perhaps nothing would be heard.
    Unsure,
}

impl Ears {
    pub(super) fn new(hearing: Hearing) -> Self {
        Self {
            hint: Notify::new(),
            found: Notify::new(),
            state: AtomicU8::new(hearing as u8),
            born: Instant::now(),
            last_claim: AtomicU64::new(0),
            last_found: AtomicU64::new(0),
            full: AtomicBool::new(false),
        }
    }

    pub(super) fn hearing(&self) -> Hearing {
        match self.state.load(Ordering::Acquire) {
            0 => Hearing::PollOnly,
            1 => Hearing::Down,
            2 => Hearing::Awake,
            3 => Hearing::Asleep,
            _ => Hearing::Unsure,
        }
    }

    /// The relay made a claim.
    pub(super) fn claimed(&self, found: bool, full: bool) {
        self.full.store(full, Ordering::Relaxed);
        let now = self.now();
        self.last_claim.store(now, Ordering::Relaxed);
        if found {
            self.last_found.store(now, Ordering::Relaxed);
            if self.hearing() == Hearing::Asleep {
                self.found.notify_one();
            }
        }
    }

    /// Whether the last claim came back full.
    pub(super) fn full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// How long ago a claim last found something.
    pub(super) fn quiet_for(&self) -> Duration {
        Duration::from_millis(self.now().saturating_sub(self.last_found.load(Ordering::Relaxed)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the relay finds nothing, or is full and does not even look: either way it does not poll for publishers.
    fn idle(&self) -> bool {
        let unused =
            Duration::from_millis(self.now().saturating_sub(self.last_claim.load(Ordering::Relaxed)));
        self.quiet_for() >= IDLE || unused >= IDLE
    }

    fn set(&self, hearing: Hearing) {
        self.become_quietly(hearing);
        self.hint.notify_one();
    }

    fn become_quietly(&self, hearing: Hearing) {
        self.state.store(hearing as u8, Ordering::Release);
    }
}

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

/// What ended a nap.
enum Woken {
    Notified,
    /// The relay found events by itself.
    Found,
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
        within(listener.listen(&self.channel)).await?;
        Ok(listener)
    }

    async fn session(&self, mut listener: PgListener) -> Result<(), Ended> {
        self.ears.set(Hearing::Awake);
        loop {
            let mut holder = self.fall_asleep(&mut listener).await?;
            // ORDER: asleep first, then the hint that comes with it, so that the relay looks once more.
            self.ears.set(Hearing::Asleep);
            let notified = self.sleep(&mut listener, &mut holder).await?;
            // ORDER: awake before the lock is given up, or publishers would keep quiet for one that still sleeps.
            self.ears.set(Hearing::Awake);
            if holder {
                self.give_up_the_lock(&mut listener, notified).await?;
            }
        }
    }

    async fn give_up_the_lock(&self, listener: &mut PgListener, notified: bool) -> Result<(), Ended> {
        let unlock = sqlx::query("SELECT pg_advisory_unlock($1)").bind(self.lock);
        within(unlock.execute(&mut *listener)).await?;
        if !notified {
            let notify = sqlx::query("SELECT pg_notify($1, '')").bind(&self.channel);
            within(notify.execute(listener)).await?;
        }
        Ok(())
    }

    /// Waits until the relay may sleep. Returns whether this session holds the sleeper's lock; if not, another one does.
    async fn fall_asleep(&self, listener: &mut PgListener) -> Result<bool, Ended> {
        let mut pause = POLL_MIN;
        let woken = Instant::now();
        loop {
            let left = IDLE
                .saturating_sub(self.ears.quiet_for())
                .max(IDLE.saturating_sub(woken.elapsed()))
                .max(pause);
            match timeout(left, listener.try_recv()).await {
                Err(_) => {}
                Ok(Ok(Some(_))) => self.ears.hint.notify_one(),
                Ok(Ok(None)) => return Err(sqlx::Error::WorkerCrashed),
                Ok(Err(error)) => return Err(error),
            }
            if woken.elapsed() < IDLE || !self.ears.idle() {
                pause = POLL_MIN;
                continue;
            }
            if within(self.try_lock(listener)).await? {
                return Ok(true);
            }
            if self.another_sleeps(listener).await? {
                return Ok(false);
            }
            // A publisher is open that saw this relay awake.
            pause = (pause * 2).min(POLL_MAX);
        }
    }

    /// Sleeps until notified (true), or until the relay has found events by itself (false).
    async fn sleep(&self, listener: &mut PgListener, holder: &mut bool) -> Result<bool, Ended> {
        loop {
            let due = self.answered(self.next_due(listener)).await?;
            let nap = due.map_or(ASK, |due| due.clamp(DUE_GRAIN, ASK));
            match self.nap(listener, Instant::now() + nap).await? {
                Woken::Notified => return Ok(true),
                Woken::Found => return Ok(false),
                Woken::Rested => {}
            }
            if due.is_some_and(|due| due <= nap) {
                self.ears.hint.notify_one();
            }
            if !*holder {
                // The sleeper whose lock this one relied on may be gone: take over, and look once more.
                *holder = self.answered(self.try_lock(listener)).await?;
                if *holder {
                    self.ears.hint.notify_one();
                }
            }
        }
    }

    /// Sleeps no longer than `until`, with a ping in each half of the fallback.
    async fn nap(&self, listener: &mut PgListener, until: Instant) -> Result<Woken, Ended> {
        loop {
            let ping = until.min(Instant::now() + self.patience());
            let heard = tokio::select! {
                heard = timeout_at(ping, listener.try_recv()) => heard,
                () = self.ears.found.notified() => return Ok(Woken::Found),
            };
            match heard {
                Ok(Ok(Some(_))) => return Ok(Woken::Notified),
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

    async fn try_lock(&self, listener: &mut PgListener) -> Result<bool, Ended> {
        sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(self.lock)
            .fetch_one(listener)
            .await
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
