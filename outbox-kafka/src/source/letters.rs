//! Events that have failed for good, on their way to the dead-letter topic. Pure: no client, no clock.
//!
//! ```text
//!   settled as failed ──▶ due ──▶ under way ──▶ safe: finished, its offset may be committed
//!                          ▲          │
//!                          └── rests ◀┘ it could not be written
//! ```
//!
//! Until its letter is safe an event stays where it is: unfinished, so that nothing is committed past it; in nobody's
//! claim; ahead of the later events of its key. Nothing else waits for it until `window_max` records more were read.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::message::OwnedMessage;
use tokio::time::Instant;

use super::partition::{Entry, Partition};
use super::state::State;

/// The most letters of one partition that are under way at a time, however many events of it have failed.
pub(super) const UNDER_WAY_MAX: usize = 128;

/// How long an event rests after its letter could not be written for the first time; it doubles from then on …
const RESTS: Duration = Duration::from_secs(1);
/// … up to this.
const RESTS_MAX: Duration = Duration::from_secs(15);

/// A letter without an answer for so long, three times what the client may take, has none to come: its thread may be gone.
const OVERDUE: Duration = Duration::from_secs(30);

/// How much of a record is written. Each form is for letters that are too large in the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    WithoutValue,
    Coordinates,
}

impl Form {
    /// The next smaller form.
    pub(super) fn cut(self) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::WithoutValue),
            Self::WithoutValue => Some(Self::Coordinates),
            Self::Coordinates => None,
        }
    }
}

/// Why an event has failed for good, and how far its burial has come.
#[derive(Debug)]
pub(super) struct Death {
    reason: Arc<str>,
    form: Form,
    /// How often its letter could not be written.
    failures: u32,
    /// When its letter may be written.
    due: Instant,
    /// The number of the letter that is under way, and since when.
    under_way: Option<(u64, Instant)>,
}

impl Death {
    pub(super) fn new(reason: &str, now: Instant) -> Self {
        Self {
            reason: reason.into(),
            form: Form::Whole,
            failures: 0,
            due: now,
            under_way: None,
        }
    }

    /// Its letter could not be written, as far as is known.
    fn rest(&mut self, now: Instant) {
        self.under_way = None;
        self.due = now + rest(self.failures);
        self.failures = self.failures.saturating_add(1);
    }
}

/// A record that has failed for good, as it is to be written.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) grave: Grave,
    pub(super) record: Arc<OwnedMessage>,
    pub(super) attempts: u32,
    pub(super) reason: Arc<str>,
    pub(super) form: Form,
}

/// Which event a letter is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grave {
    epoch: i64,
    position: i64,
    /// Each letter has a number of its own, so that a late failure is held against none but its own.
    letter: u64,
}

/// What there is to be written.
#[derive(Debug)]
pub(super) struct Letters {
    pub(super) due: Vec<Letter>,
    /// When the last letter was handed over whose answer is found to be overdue.
    pub(super) overdue: Option<Instant>,
}

/// What has become of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Safe,
    TooLarge,
    Unwritten,
}

impl State {
    /// The letters that are to be written now. They are under way from here on.
    pub(super) fn letters(&mut self, now: Instant) -> Letters {
        let (mut letters, mut overdue, mut number) = (Vec::new(), None, self.last_letter);
        for partition in self.partitions.values_mut() {
            let dead = partition
                .entries
                .values_mut()
                .filter_map(|entry| entry.death.as_mut());
            for death in dead {
                let since = death.under_way.map(|(_, since)| since);
                if since.is_some_and(|since| now >= since + OVERDUE) {
                    overdue = overdue.max(since);
                    death.rest(now);
                }
            }
            let under_way = partition.dead().filter(|death| death.under_way.is_some());
            let room = UNDER_WAY_MAX.saturating_sub(under_way.count());
            let epoch = partition.epoch;
            let due = partition.entries.iter_mut().filter_map(|(position, entry)| {
                let death = entry.death.as_mut()?;
                if death.under_way.is_some() || death.due > now {
                    return None;
                }
                number += 1;
                death.under_way = Some((number, now));
                Some(Letter {
                    grave: Grave {
                        epoch,
                        position: *position,
                        letter: number,
                    },
                    record: Arc::clone(&entry.record),
                    attempts: entry.attempt,
                    reason: Arc::clone(&death.reason),
                    form: death.form,
                })
            });
            letters.extend(due.take(room));
        }
        self.last_letter = number;
        Letters {
            due: letters,
            overdue,
        }
    }

    /// Takes what has become of a letter; the event's record and how often it was tried, if the letter still counts. One
    /// that is safe counts as long as its event is not finished, however late: another that is under way then is a copy.
    pub(super) fn delivered(&mut self, grave: Grave, delivery: Delivery, now: Instant) -> Option<Letter> {
        let name = self.epochs.get(&grave.epoch)?;
        let partition = self.partitions.get_mut(name)?;
        let entry = partition.entries.get_mut(&grave.position)?;
        let letter = entry.letter(grave, delivery)?;
        let death = entry.death.as_mut()?;
        death.under_way = None;
        match (delivery, death.form.cut()) {
            (Delivery::Safe, _) => {
                partition.finish(grave.position);
                self.dead_letters += 1;
            }
            (Delivery::TooLarge, Some(smaller)) => death.form = smaller,
            (Delivery::TooLarge, None) | (Delivery::Unwritten, _) => death.rest(now),
        }
        Some(letter)
    }

    /// Whether a letter is under way, or could be: none that rests after a failure.
    pub(super) fn is_burying(&self, now: Instant) -> bool {
        let mut dead = self.partitions.values().flat_map(Partition::dead);
        dead.any(|death| death.under_way.is_some() || death.due <= now)
    }
}

impl Partition {
    /// What has failed for good, and is not safe.
    pub(super) fn dead(&self) -> impl Iterator<Item = &Death> {
        self.entries.values().filter_map(|entry| entry.death.as_ref())
    }
}

impl Entry {
    /// The letter of this event, if it is the one that is under way or is safe.
    fn letter(&self, grave: Grave, delivery: Delivery) -> Option<Letter> {
        let death = self.death.as_ref()?;
        let under_way = death.under_way.map(|(letter, _)| letter);
        let counts = under_way == Some(grave.letter) || delivery == Delivery::Safe;
        counts.then(|| Letter {
            grave,
            record: Arc::clone(&self.record),
            attempts: self.attempt,
            reason: Arc::clone(&death.reason),
            form: death.form,
        })
    }
}

/// How long an event rests whose letters have failed so often before.
fn rest(failures: u32) -> Duration {
    RESTS
        .saturating_mul(2_u32.saturating_pow(failures))
        .min(RESTS_MAX)
}
