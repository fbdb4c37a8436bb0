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

    /// Lets go back what is paused and has not begun. The worker that comes to it hands it back, and what follows in its run.
    ///
    /// It is not called off: a worker may be beginning it at this moment, and what has begun is finished.
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
                held.lease.send_back(held.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use async_trait::async_trait;

    use super::*;
    use crate::memory::MemorySource;
    use crate::relay::lease::Lease;
    use crate::relay::worker::may_start;
    use crate::{
        Claimed, Delivered, Delivery, Dispatcher, Envelope, EventId, EventType, Failure, Payload, Relay,
    };

    struct Nothing;

    #[async_trait]
    impl Dispatcher for Nothing {
        async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
            Ok(Delivered::Handled)
        }
    }

    fn engine() -> Engine {
        let relay = Relay::builder(Arc::new(MemorySource::new()), Arc::new(Nothing)).build();
        Engine::new(relay.unwrap().0)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_paused_while_it_begins_begins_or_goes_back_and_is_never_called_off() {
        let (mut engine, now) = (engine(), Instant::now());
        let token = ClaimToken::from_parts(1, 2);
        let lease = Arc::new(Lease::new(token, now, Duration::from_secs(30)));
        let [begins, other] = [1, 2].map(|position| {
            let event_type = EventType::new("OrderPlaced").unwrap();
            let payload = Payload::from_json("1");
            let envelope = Envelope::new(EventId::new(), event_type, payload, jiff::Timestamp::now());
            let claimed = Claimed::new(token, Position(position), envelope);
            engine.take_one(claimed, Arc::clone(&lease), now).unwrap()
        });
        // Its worker has found that it may, and has not noted yet that it does.
        assert!(may_start(&begins, now));

        engine.paused(Ok(vec![(token, Position(1))]));

        assert!(!begins.delivery.cancelled.is_cancelled(), "it has begun");
        assert!(
            !may_start(&begins, now),
            "nor would it begin if its worker came only now"
        );
        assert!(may_start(&other, now));
    }
}
