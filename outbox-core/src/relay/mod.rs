//! The loop that moves events from a source to a dispatcher.
//!
//! # Overview
//! One task owns all state and never waits for a single thing ([`run_loop`], `engine`). Claims, settlements and
//! heartbeats are tasks of their own (`job`), one of each kind at a time, of settlements two (`lanes`). Deliveries are done by workers that share a
//! queue (`pool`, `worker`). Decisions are plain functions: how much to claim (`pace`), what to record (`outcome`), how
//! long to believe in a claim (`lease`).
//!
//! ```text
//!  source ─claim─▶ intake ─▶ queue ─▶ workers ─▶ results ─▶ settling ─settle─▶ source
//!                    ▲                                         │
//!                    └──────────── room, hints ◀───────────────┘
//! ```
//!
//! # State
//! An event is *held* from its claim until its delivery has ended, then *unrecorded* until the source has taken its
//! outcome. Memory is bounded by what is held: `concurrency` events, as many as were delivered within the last moment, and
//! what waits behind another of its key or for a place in its type; together no more than `concurrency` and twice the `batch_size`.
//!
//! # Time
//! Only the monotonic clock is read. Leases are believed in from before their request, less a margin.
//!
//! # Failure
//! A source that fails is asked again after a wait that grows; outcomes that it did not take are kept. A delivery that
//! fails, panics or hangs is an outcome of its event. Whatever ends the loop, what is claimed comes back by its lease.

mod backoff;
mod breaker;
mod builder;
mod caught;
mod causes;
mod drain;
mod engine;
mod error_text;
mod handle;
mod health;
mod intake;
mod job;
mod lanes;
mod lease;
mod leases;
mod outcome;
mod pace;
mod pausing;
mod pool;
mod reminders;
mod report;
mod results;
mod run;
mod settling;
mod slots;
mod spans;
mod types;
mod work;
mod worker;

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

pub use breaker::Breaker;
use builder::Parts;
pub use builder::RelayBuilder;
use engine::{Engine, Occurrence};
pub use handle::RelayHandle;
pub use health::Health;
pub use report::{RelayError, Report};

use crate::telemetry::{log_line, span};
use crate::{Dispatcher, Source};

/// Moves events from a [`Source`] to a [`Dispatcher`] until it is told to stop.
///
/// Several relays may share a source, in one process or in many; each event is in the hands of one at a time.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use outbox_core::{Dispatcher, Relay, RelaySettings, Source};
/// # async fn example(source: Arc<dyn Source>, dispatcher: Arc<dyn Dispatcher>) -> Result<(), Box<dyn std::error::Error>> {
/// let relay = Relay::builder(source, dispatcher)
///     .settings(RelaySettings::from_env()?)
///     .build()?;
/// let health = relay.health(); // for a readiness probe
/// let relay = relay.spawn();
/// // … until the process is asked to end:
/// let report = relay.shutdown().await?;
/// # Ok(())
/// # }
/// ```
pub struct Relay(Parts);

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

impl Relay {
    /// After the grace period, a stop takes at most this much longer, whatever handlers and source do.
    ///
    /// One second of it is for deliveries that are being cancelled, the rest for recording outcomes.
    pub const STOP_SLACK: Duration = Duration::from_secs(5);

    /// Starts to put a relay together.
    pub fn builder(source: Arc<dyn Source>, dispatcher: Arc<dyn Dispatcher>) -> RelayBuilder {
        RelayBuilder::new(source, dispatcher)
    }

    /// How the relay is doing. Can be kept while it runs.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.0.health)
    }

    /// Runs until `shutdown` completes, and stops gracefully then.
    ///
    /// # Errors
    /// [`RelayError::Config`] when the dispatcher refuses to start. Trouble with the source or the dispatcher never
    /// ends the loop: it waits and goes on.
    ///
    /// # Cancel safety
    /// Dropping the future gives up at once: running deliveries are cancelled, and what was claimed comes back when its
    /// lease ends. Let `shutdown` complete instead, and everything is due again when this returns.
    pub async fn run_until(self, shutdown: impl Future<Output = ()> + Send) -> Result<Report, RelayError> {
        self.run(shutdown, CancellationToken::new()).await
    }

    /// Runs in a task of its own, until its handle asks it to stop.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn spawn(self) -> RelayHandle {
        handle::spawn(self)
    }

    /// `hurry` ends the grace period early.
    async fn run(
        self,
        shutdown: impl Future<Output = ()> + Send,
        hurry: CancellationToken,
    ) -> Result<Report, RelayError> {
        let poller = tracing::info_span!(span::POLLER);
        async {
            let limits = self.0.settings.limits();
            let limits = limits.with_metrics(self.0.metrics.clone());
            self.0.dispatcher.prepare(&limits)?;
            tracing::info!(settings = ?self.0.settings, "{}", log_line::RELAY_STARTING);
            let mut engine = Engine::new(self.0);
            engine.health.started();
            run_loop(&mut engine, shutdown).await;
            drain::drain(&mut engine, hurry).await;
            tracing::info!(report = ?engine.report, "{}", log_line::RELAY_STOPPED);
            Ok(engine.report)
        }
        .instrument(poller)
        .await
    }
}

/// claim ▶ dispatch ▶ settle ▶ wait, all of them under way at the same time.
async fn run_loop(engine: &mut Engine, shutdown: impl Future<Output = ()>) {
    let mut shutdown = pin!(shutdown);
    loop {
        let now = Instant::now();
        engine.note_time(now);
        engine.claim_or_wait(now);
        engine.settle_and_extend(now);
        match engine.next(shutdown.as_mut()).await {
            Occurrence::Stop => return,
            occurrence => engine.apply(occurrence),
        }
    }
}

impl Engine {
    fn settle_and_extend(&mut self, now: Instant) {
        let nothing_else = self.held.is_empty();
        self.settling.flush_if_due(now, nothing_else, &self.jobs);
        self.leases.beat_if_due(now, &self.jobs);
        self.sweep_if_due(now);
    }

    /// Takes in what happened. Starting what follows from it is the loop's business.
    fn apply(&mut self, occurrence: Occurrence) {
        let now = Instant::now();
        match occurrence {
            Occurrence::Claimed(answer) => self.claimed(answer, now),
            Occurrence::Settled(lane, answer) => self.settled(lane, answer, now),
            Occurrence::Extended(answer) => self.extended(answer, now),
            Occurrence::Paused(answer) => self.paused(answer),
            Occurrence::Hint => self.poll_again(),
            Occurrence::Finished | Occurrence::Time | Occurrence::Stop => {}
        }
        self.collect(now);
        self.return_unprobed(now);
        self.note_listening();
    }

    fn note_listening(&mut self) {
        let listening = self.source.listening();
        if self.health.set_listening(listening) {
            self.metrics.listening(listening);
        }
    }
}

/// However the loop ends: no worker begins anything more, what runs is called off, and health says so.
impl Drop for Engine {
    fn drop(&mut self) {
        self.pool.close();
        drop(self.pool.take_queue());
        for (_, held) in &self.held {
            held.cancelled.cancel();
        }
        self.health.end();
    }
}
