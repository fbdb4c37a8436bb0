//! A session of the listener: falling asleep, keeping watch, waking. The rules stand with the listener.

use std::time::Duration;

use futures_util::FutureExt;
use sqlx::postgres::{PgListener, PgNotification};
use sqlx::{Acquire, Connection};
use tokio::time::{Instant, timeout, timeout_at};

use super::ears::{Ears, Hearing};
use super::listener::{ASK, Ended, Listener, POLL_MAX, POLL_MIN, within};
use super::pace::{Crowd, VIGIL_MAX, VIGIL_MIN, vigil};

/// How soon a sleeper asks that was notified: what was published may be due later.
const ASK_SOON: Duration = Duration::from_millis(250);
/// A sleeper looks no more often than this, when the end of a lease is past and the relay did not take its events.
const DUE_GRAIN: Duration = Duration::from_millis(50);
/// A relay that has not begun to look so long after it was told to has no room. Longer than a claim that is under way.
const HURRY: Duration = Duration::from_millis(250);
/// The longest pause between two tries to fall asleep, while publishers are open that saw the relay awake.
const TRY_MAX: Duration = Duration::from_secs(1);

/// What a publisher says that met another one. Others say nothing.
const CROWD: &str = "crowd";

/// What ended a nap.
enum Woken {
    Rested,
    /// The relay is to poll: as long as another relay says, or as long as this one has to find out.
    Up(Option<Duration>),
}

pub(super) struct Sleeper<'a> {
    listener: &'a Listener,
    session: PgListener,
    /// It has the sleepers' lock.
    on_watch: bool,
    /// It listens to publishers.
    hears: bool,
    /// How long its relay polls at least when it is woken.
    vigil: Duration,
}

impl<'a> Sleeper<'a> {
    pub(super) fn new(listener: &'a Listener, session: PgListener) -> Self {
        Self {
            listener,
            session,
            on_watch: false,
            hears: false,
            vigil: VIGIL_MIN,
        }
    }

    /// Sleeps and wakes, until the connection is lost.
    pub(super) async fn run(mut self) -> Ended {
        self.ears().set(Hearing::Awake);
        let mut awake_until = Instant::now();
        loop {
            match self.night(awake_until).await {
                Ok(()) => awake_until = Instant::now() + self.vigil,
                Err(ended) => return ended,
            }
        }
    }

    /// Falls asleep, and wakes.
    async fn night(&mut self, awake_until: Instant) -> Result<(), Ended> {
        self.fall_asleep(awake_until).await?;
        let began = Instant::now();
        let told = self.sleep().await?;
        // ORDER: awake before the lock is given up, or publishers would keep quiet for one that still sleeps.
        self.ears().set(Hearing::Awake);
        self.vigil = told.unwrap_or_else(|| vigil(self.vigil, began.elapsed()));
        within(self.get_up()).await
    }

    fn ears(&self) -> &'a Ears {
        &self.listener.ears
    }

    /// Waits until the relay may sleep, and this one or another keeps watch.
    async fn fall_asleep(&mut self, awake_until: Instant) -> Result<(), Ended> {
        let mut pause = POLL_MIN;
        loop {
            let until = awake_until.max(Instant::now() + pause);
            if let Ok(heard) = timeout_at(until, self.session.try_recv()).await {
                some(heard)?;
                self.ears().hint.notify_one();
            }
            if Instant::now() < awake_until {
                continue;
            }
            if !self.ears().is_idle() {
                pause = (pause * 2).min(POLL_MAX);
                continue;
            }
            if within(self.try_watch()).await? {
                self.ears().become_quietly(Hearing::Asleep);
                return Ok(());
            }
            if within(self.listener.another_sleeps(&mut self.session)).await? {
                self.ears().set(Hearing::Asleep);
                return Ok(());
            }
            // A publisher is open that saw this relay awake: nobody gets the lock.
            pause = (pause * 2).min(TRY_MAX);
        }
    }

    /// Takes the sleepers' lock, if it is free, and listens to publishers. What was published in between, or said to relays
    /// before, is there to be found by the look that follows.
    async fn try_watch(&mut self) -> Result<bool, Ended> {
        let lock = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)").bind(self.listener.lock);
        self.on_watch = lock.fetch_one(&mut self.session).await?;
        if self.on_watch {
            self.hear().await?;
            while self.already_there()?.is_some() {}
        }
        Ok(self.on_watch)
    }

    async fn hear(&mut self) -> Result<(), Ended> {
        if !self.hears {
            self.session.listen(&self.listener.channel).await?;
            self.hears = true;
        }
        Ok(())
    }

    async fn get_up(&mut self) -> Result<(), Ended> {
        if std::mem::take(&mut self.on_watch) {
            // In one statement: the others must not sleep on a lock that is gone.
            let wake = sqlx::query("SELECT pg_advisory_unlock($1), pg_notify($2, $3)")
                .bind(self.listener.lock)
                .bind(self.listener.relays_channel())
                .bind(self.vigil.as_millis().to_string());
            wake.execute(&mut self.session).await?;
        }
        if std::mem::take(&mut self.hears) {
            self.session.unlisten(&self.listener.channel).await?;
        }
        Ok(())
    }

    /// Sleeps until the relay should poll; for how long, if another one says so.
    async fn sleep(&mut self) -> Result<Option<Duration>, Ended> {
        let (began, listener) = (Instant::now(), self.listener);
        let (mut crowd, mut overdue) = (Crowd::default(), false);
        // What stirred it before is over.
        let _ = self.ears().stirred.notified().now_or_never();
        if self.on_watch && !self.relay_looks().await {
            return Ok(None);
        }
        loop {
            let due = listener.answered(listener.next_due(&mut self.session)).await?;
            let asked = Instant::now();
            overdue |= due.is_some_and(|due| due < DUE_GRAIN);
            let due = due.map(|due| asked + due.max(DUE_GRAIN));
            let until = due.map_or(asked + ASK, |due| due.min(asked + ASK));
            if let Woken::Up(told) = self.nap(until, &mut crowd).await? {
                return Ok(told);
            }
            if due.is_some_and(|due| due <= Instant::now()) {
                self.ears().hint.notify_one();
            }
            if !self.on_watch && !self.is_watched(overdue.then_some(began)).await? {
                return Ok(None);
            }
        }
    }

    /// Whether this one, or another, keeps watch. `overdue`: since when it sleeps, if something was overdue meanwhile.
    async fn is_watched(&mut self, overdue: Option<Instant>) -> Result<bool, Ended> {
        let listener = self.listener;
        if listener.answered(self.try_watch()).await? {
            return Ok(self.relay_looks().await);
        }
        // What was overdue, and the relay has found since, the one on watch has left lying.
        if overdue.is_some_and(|began| self.ears().quiet_for() + HURRY < began.elapsed()) {
            listener.answered(self.hear()).await?;
        }
        let another = listener.another_sleeps(&mut self.session);
        listener.answered(another).await
    }

    /// Sleeps no longer than `until`, with a ping in each half of the fallback.
    async fn nap(&mut self, mut until: Instant, crowd: &mut Crowd) -> Result<Woken, Ended> {
        let listener = self.listener;
        loop {
            let ping = Instant::now() + listener.patience();
            let heard = tokio::select! {
                heard = timeout_at(ping.min(until), self.session.try_recv()) => heard,
                () = listener.ears.stirred.notified() => {
                    let after = listener.ears.full_at();
                    if !listener.ears.could_sleep() || !self.looked(after).await {
                        return Ok(Woken::Up(None));
                    }
                    continue;
                }
            };
            match heard {
                Ok(heard) => {
                    if let Some(up) = self.heed(some(heard)?, crowd).await? {
                        return Ok(up);
                    }
                    until = until.min(Instant::now() + ASK_SOON);
                }
                Err(_) if Instant::now() >= until => return Ok(Woken::Rested),
                Err(_) => {
                    let ping = async { self.session.acquire().await?.ping().await };
                    listener.answered(ping).await?;
                }
            }
        }
    }

    /// Takes in a notification and all that came with it, and has the relay look. Whether it is to poll instead.
    async fn heed(&mut self, said: PgNotification, crowd: &mut Crowd) -> Result<Option<Woken>, Ended> {
        let mut next = Some(said);
        while let Some(said) = next {
            if said.channel() != self.listener.channel {
                let told = said.payload().parse().ok().map(Duration::from_millis);
                return Ok(Some(Woken::Up(told.map(|told| told.min(VIGIL_MAX)))));
            }
            if crowd.heard(said.payload() == CROWD) {
                return Ok(Some(Woken::Up(None)));
            }
            next = self.already_there()?;
        }
        Ok((!self.relay_looks().await).then_some(Woken::Up(None)))
    }

    /// A notification that need not be waited for.
    fn already_there(&mut self) -> Result<Option<PgNotification>, Ended> {
        self.session.try_recv().now_or_never().map(some).transpose()
    }

    /// Has the relay look; whether it has begun to.
    async fn relay_looks(&self) -> bool {
        let after = self.ears().looks();
        self.ears().hint.notify_one();
        self.looked(after).await
    }

    /// Whether a look begins, or has begun, after so many.
    async fn looked(&self, after: u64) -> bool {
        timeout(HURRY, self.ears().look_after(after)).await.is_ok()
    }
}

/// What was heard; nothing is heard from a connection that is lost.
fn some(heard: Result<Option<PgNotification>, Ended>) -> Result<PgNotification, Ended> {
    heard?.ok_or(sqlx::Error::WorkerCrashed)
}
