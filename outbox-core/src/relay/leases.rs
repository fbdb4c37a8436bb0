//! All claims in this relay's hands, and the heartbeat that keeps them.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::job::{Job, Jobs};
use super::lease::Lease;
use crate::{ClaimToken, SourceError};

#[derive(Debug)]
pub(super) struct Leases {
    lease: Duration,
    all: Vec<Arc<Lease>>,
    next_beat: Option<Instant>,
    pub(super) beat: Option<Job<Vec<ClaimToken>>>,
    asked: Option<Instant>,
    sent: Vec<Arc<Lease>>,
}

impl Leases {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            lease,
            all: Vec::new(),
            next_beat: None,
            beat: None,
            asked: None,
            sent: Vec::new(),
        }
    }

    /// How often claims are extended: two beats may fail before a claim is in danger.
    fn interval(&self) -> Duration {
        self.lease / 3
    }

    pub(super) fn add(&mut self, lease: Arc<Lease>, now: Instant) {
        // Busy relays go through many claims between two beats.
        if self.all.len() >= 64 {
            self.all.retain(|lease| !lease.is_over());
        }
        self.all.push(lease);
        self.next_beat.get_or_insert(now + self.interval());
    }

    pub(super) fn next_beat(&self) -> Option<Instant> {
        if self.beat.is_some() { None } else { self.next_beat }
    }

    /// Starts extending what is held, if it is time.
    pub(super) fn beat_if_due(&mut self, now: Instant, jobs: &Jobs) {
        if self.beat.is_some() || self.next_beat.is_none_or(|time| now < time) {
            return;
        }
        self.all.retain(|lease| !lease.is_over());
        if self.all.is_empty() {
            self.next_beat = None;
            return;
        }
        self.next_beat = Some(now + self.interval());
        self.sent.clone_from(&self.all);
        self.asked = Some(now);
        let tokens = self.all.iter().map(|lease| lease.token).collect();
        self.beat = Some(jobs.extend(tokens, self.lease));
    }

    /// Takes in the answer to a beat, and returns the claims that are lost.
    pub(super) fn answered(
        &mut self,
        answer: Result<Vec<ClaimToken>, SourceError>,
        now: Instant,
    ) -> Result<Vec<Arc<Lease>>, SourceError> {
        let sent = std::mem::take(&mut self.sent);
        let asked = self.asked.take().unwrap_or(now);
        let lost = match answer {
            Ok(lost) => lost,
            Err(error) => {
                self.next_beat = Some(now + self.lease / 10);
                return Err(error);
            }
        };
        let (gone, kept): (Vec<_>, Vec<_>) = sent.into_iter().partition(|lease| lost.contains(&lease.token));
        for lease in kept {
            lease.extend(asked, self.lease);
        }
        // What was settled while the beat was under way is gone rightly.
        let gone: Vec<_> = gone.into_iter().filter(|lease| !lease.is_over()).collect();
        for lease in &gone {
            lease.lose();
        }
        Ok(gone)
    }
}
