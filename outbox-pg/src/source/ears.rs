//! What the listener and the relay tell each other.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::pace::Pace;

/// A relay that has not looked for so long has no room. Longer than its longest pause and a slow claim.
const NO_ROOM: Duration = Duration::from_millis(500);

/// Shared by a relay's source and its listener.
#[derive(Debug)]
pub(super) struct Ears {
    /// Set when events may be due.
    pub(super) hint: Notify,
    /// Set when the relay found so many events that it should not sleep.
    pub(super) stirred: Notify,
    state: AtomicU8,
    born: Instant,
    /// Changes whenever the relay begins to look for events of every type.
    pub(super) looks: watch::Sender<()>,
    /// Milliseconds since birth at which the relay last began to look, and last found something.
    last_look: AtomicU64,
    last_found: AtomicU64,
    pace: Mutex<Pace>,
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
            stirred: Notify::new(),
            state: AtomicU8::new(hearing as u8),
            born: Instant::now(),
            looks: watch::Sender::default(),
            last_look: AtomicU64::new(0),
            last_found: AtomicU64::new(0),
            pace: Mutex::default(),
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

    pub(super) fn set(&self, hearing: Hearing) {
        self.become_quietly(hearing);
        self.hint.notify_one();
    }

    pub(super) fn become_quietly(&self, hearing: Hearing) {
        self.state.store(hearing as u8, Ordering::Release);
    }

    /// The relay begins a claim that no type is excluded from.
    pub(super) fn look(&self) {
        self.last_look.store(self.now(), Ordering::Relaxed);
        self.looks.send_replace(());
    }

    /// The relay has made a claim.
    pub(super) fn claimed(&self, found: usize, full: bool) {
        self.full.store(full, Ordering::Relaxed);
        if found > 0 {
            let now = self.now();
            self.last_found.store(now, Ordering::Relaxed);
            self.with_pace(|pace| pace.found(now, found));
            let is_busy = self.with_pace(|pace| pace.is_busy(now));
            // After a claim that was full there may be more, and no room for it.
            if self.hearing() == Hearing::Asleep && (is_busy || full) {
                self.stirred.notify_one();
            }
        }
    }

    /// Whether the last claim came back full.
    pub(super) fn full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// How long ago a claim last found something.
    pub(super) fn quiet_for(&self) -> Duration {
        self.since(&self.last_found)
    }

    /// Whether a relay that was told of every event would serve as well as one that polls: it finds few, and has room.
    pub(super) fn is_idle(&self) -> bool {
        self.since(&self.last_look) < NO_ROOM && self.with_pace(|pace| pace.is_calm(self.now()))
    }

    fn since(&self, instant: &AtomicU64) -> Duration {
        Duration::from_millis(self.now().saturating_sub(instant.load(Ordering::Relaxed)))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn with_pace<T>(&self, run: impl FnOnce(&mut Pace) -> T) -> T {
        run(&mut self.pace.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
