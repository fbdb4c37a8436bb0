//! Delivers an event to all handlers registered for its type.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use futures_util::future::join_all;
use outbox_core::telemetry::log_line;
use outbox_core::{
    ConfigError, Delivered, Delivery, Dispatcher, EventType, Failure, FailureKind, Limits, Policy, State,
};

use crate::merge::{Usual, merged};
use crate::outcome::{PartEnd, combine, is_settled};
use crate::part::{Part, Surroundings, run};
use crate::{HandlerOptions, Unhandled};

/// The most unhandled types that are told apart, for their names come from outside.
const WARNED_LIMIT: usize = 1000;

/// The handlers of one event type.
pub(crate) struct Listeners {
    pub(crate) parts: Vec<Part>,
    pub(crate) options: Vec<HandlerOptions>,
}

/// Delivers an event to all handlers registered for its type, at the same time. Made by [`Registry`](crate::Registry).
pub struct InProcDispatcher {
    listeners: HashMap<EventType, Listeners>,
    surroundings: Surroundings,
    unhandled: Unhandled,
    /// Touched only by events that nobody handles.
    warned: Mutex<HashSet<EventType>>,
}

impl InProcDispatcher {
    pub(crate) fn new(listeners: HashMap<EventType, Listeners>, unhandled: Unhandled, state: State) -> Self {
        Self {
            listeners,
            surroundings: Surroundings {
                state: Arc::new(state),
                usual: OnceLock::new(),
                metrics: OnceLock::new(),
            },
            unhandled,
            warned: Mutex::default(),
        }
    }

    /// How many handlers each event type has.
    #[must_use]
    pub fn handler_counts(&self) -> BTreeMap<&str, usize> {
        self.listeners
            .iter()
            .map(|(event_type, listeners)| (event_type.as_str(), listeners.parts.len()))
            .collect()
    }

    fn nobody_listens(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let event_type = &delivery.envelope.event_type;
        if !delivery.done.is_empty() {
            // Its handlers were removed between two tries: what they said still holds.
            return combine(&delivery.done, []);
        }
        if self.is_news(event_type) {
            tracing::warn!(%event_type, policy = ?self.unhandled, "{}", log_line::TYPE_UNHANDLED);
        }
        let failure = match self.unhandled {
            Unhandled::Complete => return Ok(Delivered::Unhandled),
            Unhandled::Fail => Failure::new(FailureKind::Reject, format!("no handler for `{event_type}`")),
            Unhandled::Hold(wait) => Failure::new(
                FailureKind::NotTried,
                format!("held: no handler for `{event_type}`"),
            )
            .with_retry_after(Some(wait)),
        };
        Err(failure.with_done(delivery.done.to_vec()))
    }

    /// Whether this is the first event of that type nobody listens to.
    fn is_news(&self, event_type: &EventType) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        warned.len() < WARNED_LIMIT && !warned.contains(event_type) && warned.insert(event_type.clone())
    }
}

#[async_trait]
impl Dispatcher for InProcDispatcher {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let Some(listeners) = self.listeners.get(&delivery.envelope.event_type) else {
            return self.nobody_listens(delivery);
        };
        if delivery.cancelled.is_cancelled() {
            return Err(Failure::new(FailureKind::NotTried, "called off before it began")
                .with_done(delivery.done.to_vec()));
        }

        // One handler and nothing done before: the common case needs no joining.
        if let ([part], []) = (listeners.parts.as_slice(), &*delivery.done) {
            let end = run(part, delivery, &self.surroundings).await;
            if end == PartEnd::Done {
                return Ok(Delivered::Handled);
            }
            return combine(&[], [(&part.name, end)]);
        }

        let tries = listeners
            .parts
            .iter()
            .filter(|part| !is_settled(&part.name, &delivery.done))
            .map(|part| async move { (&part.name, run(part, delivery, &self.surroundings).await) });
        combine(&delivery.done, join_all(tries).await)
    }

    fn policy(&self, event_type: &EventType) -> Policy {
        self.listeners
            .get(event_type)
            .map(|listeners| merged(&listeners.options, self.surroundings.usual()))
            .unwrap_or_default()
    }

    fn prepare(&self, limits: &Limits) -> Result<(), ConfigError> {
        // Set once: relays that share a dispatcher have the same settings, or else the first one's count.
        let _ = self.surroundings.usual.set(Usual {
            timeout: Some(limits.handler_timeout),
            attempts: limits.max_attempts,
        });
        if let Some(metrics) = &limits.metrics {
            let _ = self.surroundings.metrics.set(Arc::clone(metrics));
        }
        tracing::info!(handler_counts = ?self.handler_counts(), "{}", log_line::DISPATCHER_STARTING);
        Ok(())
    }
}

impl fmt::Debug for InProcDispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcDispatcher")
            .field("handler_counts", &self.handler_counts())
            .field("state", &self.surroundings.state)
            .field("unhandled", &self.unhandled)
            .finish_non_exhaustive()
    }
}
