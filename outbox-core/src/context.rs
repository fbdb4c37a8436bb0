//! What a handler learns beside the event.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::{Delivery, Envelope, EventId, Headers, PartName, TenantId};

/// Values of the application that handlers can ask for by type: pools, clients, settings.
#[derive(Default, Clone)]
pub struct State(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl State {
    /// Adds a value; one per type, the last one wins.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// The value of that type, if one was added.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.0
            .get(&TypeId::of::<T>())
            .and_then(|value| value.downcast_ref())
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({} values)", self.0.len())
    }
}

/// What a handler learns beside the event. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Context {
    delivery: Arc<Delivery>,
    state: Arc<State>,
    part: Option<PartName>,
}

impl Context {
    /// The context of one delivery.
    #[must_use]
    pub fn new(delivery: Arc<Delivery>, state: Arc<State>) -> Self {
        Self {
            delivery,
            state,
            part: None,
        }
    }

    /// Says which part of the delivery this is for.
    #[must_use]
    pub fn with_part(mut self, part: PartName) -> Self {
        self.part = Some(part);
        self
    }

    /// The name that the handler is registered under, if its dispatcher gives names.
    #[must_use]
    pub fn part(&self) -> Option<&PartName> {
        self.part.as_ref()
    }

    /// The stored event, payload and all.
    #[must_use]
    pub fn envelope(&self) -> &Envelope {
        &self.delivery.envelope
    }

    /// The event's id: the key to idempotent handling.
    #[must_use]
    pub fn event_id(&self) -> EventId {
        self.delivery.envelope.id
    }

    /// Which try this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.delivery.attempt
    }

    /// What travels beside the payload.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.delivery.envelope.headers
    }

    /// Whose event it is; empty where there are no tenants.
    #[must_use]
    pub fn tenant_id(&self) -> &TenantId {
        &self.delivery.envelope.tenant_id
    }

    /// When the event was published.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        self.delivery.envelope.created_at
    }

    /// When this try is given up.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.delivery.deadline
    }

    /// The span of the try, around those of its handlers; none while nobody listens.
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.delivery.span
    }

    /// Fires when the handler should end: its time is up, its claim was lost, or the relay stops.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.delivery.cancelled
    }

    /// The application's value of type `T`, if it was registered.
    #[must_use]
    pub fn state<T: Send + Sync + 'static>(&self) -> Option<&T> {
        self.state.get()
    }
}
