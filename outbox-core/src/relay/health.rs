//! How a relay is doing, for readiness probes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::breaker::Breaker;
use crate::{EventType, Listening};

/// How a relay is doing. Shared with the running relay, and cheap to read.
#[derive(Debug)]
pub struct Health {
    epoch: Instant,
    poll_timeout: Duration,
    running: AtomicBool,
    ended: AtomicBool,
    /// Milliseconds after `epoch`.
    last_poll_ms: AtomicU64,
    poll_errors: AtomicU32,
    settle_errors: AtomicU32,
    in_flight: AtomicUsize,
    stuck: AtomicUsize,
    listening: AtomicU8,
    /// Those that are not closed.
    breakers: Mutex<BTreeMap<EventType, Breaker>>,
}

impl Health {
    pub(super) fn new(poll_timeout: Duration) -> Self {
        Self {
            epoch: Instant::now(),
            poll_timeout,
            running: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            last_poll_ms: AtomicU64::new(0),
            poll_errors: AtomicU32::new(0),
            settle_errors: AtomicU32::new(0),
            in_flight: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
            listening: AtomicU8::new(0),
            breakers: Mutex::default(),
        }
    }

    /// How long ago the source last answered a claim; counted from the relay's making while it has not yet.
    #[must_use]
    pub fn since_last_poll(&self) -> Duration {
        let last = Duration::from_millis(self.last_poll_ms.load(Ordering::Relaxed));
        self.epoch.elapsed().saturating_sub(last)
    }

    /// Failed claims in a row.
    #[must_use]
    pub fn consecutive_poll_errors(&self) -> u32 {
        self.poll_errors.load(Ordering::Relaxed)
    }

    /// Failed settlements in a row; what they were to record is kept.
    #[must_use]
    pub fn consecutive_settle_errors(&self) -> u32 {
        self.settle_errors.load(Ordering::Relaxed)
    }

    /// Claimed events whose delivery has not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Deliveries that ignore their cancellation and keep a thread.
    #[must_use]
    pub fn stuck(&self) -> usize {
        self.stuck.load(Ordering::Relaxed)
    }

    /// How the source hears of new events.
    #[must_use]
    pub fn listening(&self) -> Listening {
        match self.listening.load(Ordering::Relaxed) {
            0 => Listening::PollOnly,
            1 => Listening::Down,
            _ => Listening::Up,
        }
    }

    /// Where the outage breaker of an event type stands.
    #[must_use]
    pub fn breaker(&self, event_type: &EventType) -> Breaker {
        self.lock_breakers().get(event_type).copied().unwrap_or_default()
    }

    /// The event types whose outage breaker is not closed. Readiness does not depend on them: other types flow.
    #[must_use]
    pub fn breakers(&self) -> Vec<(EventType, Breaker)> {
        let all = self.lock_breakers();
        all.iter()
            .map(|(name, breaker)| (name.clone(), *breaker))
            .collect()
    }

    fn lock_breakers(&self) -> MutexGuard<'_, BTreeMap<EventType, Breaker>> {
        self.breakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the relay's loop is over: stopped, failed, or dropped.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether the relay runs, and its source has answered within `intervals` poll timeouts or is not asked because
    /// all places are taken.
    ///
    /// Three is a good number for a readiness probe.
    #[must_use]
    pub fn is_healthy(&self, intervals: u32) -> bool {
        let runs = self.running.load(Ordering::Relaxed) && !self.has_ended();
        let quiet = self.consecutive_poll_errors() == 0 && self.in_flight() > self.stuck();
        runs && (quiet || self.since_last_poll() <= self.poll_timeout.saturating_mul(intervals))
    }

    pub(super) fn started(&self) {
        self.running.store(true, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.in_flight.store(0, Ordering::Relaxed);
    }

    pub(super) fn polled(&self) {
        let ms = self.epoch.elapsed().as_millis();
        self.last_poll_ms
            .store(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.poll_errors.store(0, Ordering::Relaxed);
    }

    pub(super) fn poll_failed(&self) {
        self.poll_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_settle_errors(&self, errors: u32) {
        self.settle_errors.store(errors, Ordering::Relaxed);
    }

    pub(super) fn set_in_flight(&self, events: usize) {
        self.in_flight.store(events, Ordering::Relaxed);
    }

    pub(super) fn set_stuck(&self, deliveries: usize) {
        self.stuck.store(deliveries, Ordering::Relaxed);
    }

    /// Notes where a breaker stands, and returns where it stood.
    pub(super) fn set_breaker(&self, event_type: &EventType, breaker: Breaker) -> Breaker {
        let mut all = self.lock_breakers();
        let before = match breaker {
            Breaker::Closed => all.remove(event_type),
            Breaker::HalfOpen | Breaker::Open => all.insert(event_type.clone(), breaker),
        };
        before.unwrap_or_default()
    }

    /// Notes how the source listens; whether that has changed.
    pub(super) fn set_listening(&self, listening: Listening) -> bool {
        let code = match listening {
            Listening::PollOnly => 0,
            Listening::Down => 1,
            Listening::Up => 2,
        };
        self.listening.swap(code, Ordering::Relaxed) != code
    }
}
