//! What the listener and the relay tell each other.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::pace::Pace;

/// A relay that has made no claim for so long has no room. Longer than its longest pause and a slow claim.
const NO_ROOM: Duration = Duration::from_millis(500);

/// Shared by a relay's source and its listener.
#[derive(Debug)]
pub(super) struct Ears {
    /// Set when events may be due.
    pub(super) hint: Notify,
    /// Set when the relay perhaps should not sleep: it found many events, or has no room, or cannot claim.
    pub(super) stirred: Notify,
    state: AtomicU8,
    born: Instant,
    /// How often the relay has begun to look, and how often when a claim last came back full.
    looks: watch::Sender<u64>,
    full_at: AtomicU64,
    /// Milliseconds since birth at which a claim was last made, and last found something.
    last_claim: AtomicU64,
    last_found: AtomicU64,
    pace: Mutex<Pace>,
    /// Whether the last claim came back full: there is more, surely.
    full: AtomicBool,
    /// Whether the last claim could take events of any type and size.
    has_room: AtomicBool,
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
            full_at: AtomicU64::new(0),
            last_claim: AtomicU64::new(0),
            last_found: AtomicU64::new(0),
            pace: Mutex::default(),
            full: AtomicBool::new(false),
            has_room: AtomicBool::new(false),
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

    /// The relay begins a claim.
    pub(super) fn look(&self) {
        self.looks.send_modify(|looks| *looks += 1);
    }

    pub(super) fn looks(&self) -> u64 {
        *self.looks.borrow()
    }

    /// Returns when the relay has begun to look more often than this.
    pub(super) async fn look_after(&self, looks: u64) {
        // An error would mean that the sender is gone, which is here.
        let _ = self.looks.subscribe().wait_for(|now| *now > looks).await;
    }

    /// How often the relay had begun to look when a claim last came back full. With room for more it looks again at once.
    pub(super) fn full_at(&self) -> u64 {
        self.full_at.load(Ordering::Relaxed)
    }

    /// The relay has made a claim, which could take events of any type and size, or not.
    pub(super) fn claimed(&self, found: usize, full: bool, has_room: bool) {
        let now = self.now();
        self.full.store(full, Ordering::Relaxed);
        self.has_room.store(has_room, Ordering::Relaxed);
        self.last_claim.store(now, Ordering::Relaxed);
        if full {
            self.full_at.store(self.looks(), Ordering::Relaxed);
        }
        if found > 0 {
            self.last_found.store(now, Ordering::Relaxed);
            self.with_pace(|pace| pace.found(now, found));
        }
        if full || !self.could_sleep() {
            self.stir();
        }
    }

    /// The relay cannot claim.
    pub(super) fn failed(&self) {
        self.has_room.store(false, Ordering::Relaxed);
        self.stir();
    }

    fn stir(&self) {
        if matches!(self.hearing(), Hearing::Asleep | Hearing::Unsure) {
            self.stirred.notify_one();
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

    /// Whether a relay that sleeps may go on sleeping: it does not find many events, and takes any.
    pub(super) fn could_sleep(&self) -> bool {
        self.has_room.load(Ordering::Relaxed) && !self.with_pace(|pace| pace.is_busy(self.now()))
    }

    /// Whether the relay would do as well if it slept and was told of every event: it finds few, and has room.
    pub(super) fn is_idle(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
            && !self.full()
            && self.since(&self.last_claim) < NO_ROOM
            && self.with_pace(|pace| pace.is_calm(self.now()))
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
