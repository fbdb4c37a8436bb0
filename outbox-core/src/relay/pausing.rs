//! What was claimed and not begun when an operator paused its type or its key goes back.
//!
//! # Overview
//! A claim takes nothing that is paused. But what waits behind a slow event of its key, or for a place in its type, was
//! claimed long before it begins: so now and then the source is asked what of it has been paused since.
//!
//! # Time
//! Asked twice within a poll timeout, about claims of at least that age: fast deliveries never ask.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use super::engine::Engine;
use super::job::Job;
use super::results::chain;
use crate::{ClaimToken, Position, SourceError};

#[derive(Debug)]
pub(super) struct Pausing {
    every: Duration,
    next: Instant,
    pub(super) call: Option<Job<Vec<(ClaimToken, Position)>>>,
}

impl Pausing {
    pub(super) fn new(poll_timeout: Duration, now: Instant) -> Self {
        let every = poll_timeout / 2;
        Self {
            every,
            next: now + every,
            call: None,
        }
    }
}

impl Engine {
    /// Asks what has been paused of that which has been waiting in this relay for a while.
    pub(super) fn ask_paused_if_due(&mut self, now: Instant) {
        if self.pausing.call.is_some() || now < self.pausing.next || self.stopping {
            return;
        }
        self.pausing.next = now + self.pausing.every;
        let begun = self.pool.begun();
        let waiting = self.held.iter().map(|(_, held)| held);
        let tokens: HashSet<ClaimToken> = waiting
            .filter(|held| held.lease.age(now) >= self.pausing.every && !begun.contains(&held.id))
            .map(|held| held.lease.token)
            .collect();
        if !tokens.is_empty() {
            self.pausing.call = Some(self.jobs.paused(tokens.into_iter().collect()));
        }
    }

    /// Calls off what is paused and has not begun. The worker that comes to it hands it back, and what follows in its run.
    pub(super) fn paused(&mut self, answer: Result<Vec<(ClaimToken, Position)>, SourceError>) {
        let paused: HashSet<_> = match answer {
            Ok(paused) if paused.is_empty() => return,
            Ok(paused) => paused.into_iter().collect(),
            // Claims say it when the source is in trouble.
            Err(error) => return tracing::debug!(error = chain(&error), "what is paused is not known"),
        };
        let begun = self.pool.begun();
        for (_, held) in &self.held {
            if paused.contains(&(held.lease.token, held.position)) && !begun.contains(&held.id) {
                held.cancelled.cancel();
            }
        }
    }
}
