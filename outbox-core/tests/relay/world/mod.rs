//! A dispatcher whose deliveries do what each test says, and events for it.
#![allow(
    dead_code,
    unused_imports,
    reason = "each test file uses its own part of this world"
)]

mod faulty;

pub(crate) use faulty::{Faults, Faulty};

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use outbox_core::memory::MemorySource;
use outbox_core::{
    Delivered, Delivery, Dispatcher, Envelope, EventId, EventType, Failure, FailureKind, OrderingKey,
    Payload, Policy,
};
use tokio::time::Instant;

type Script =
    dyn Fn(Delivery) -> futures_util::future::BoxFuture<'static, Result<(), FailureKind>> + Send + Sync;

/// One delivery as the dispatcher saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) id: EventId,
    pub(crate) attempt: u32,
}

/// Delivers by a script per event type; types without one succeed.
#[derive(Default)]
pub(crate) struct Scripted {
    scripts: HashMap<&'static str, Box<Script>>,
    policies: HashMap<&'static str, Policy>,
    seen: Mutex<Vec<Seen>>,
}

impl Scripted {
    pub(crate) fn on<F>(
        mut self,
        event_type: &'static str,
        script: impl Fn(Delivery) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), FailureKind>> + Send + 'static,
    {
        self.scripts
            .insert(event_type, Box::new(move |delivery| Box::pin(script(delivery))));
        self
    }

    pub(crate) fn policy(mut self, event_type: &'static str, policy: Policy) -> Self {
        self.policies.insert(event_type, policy);
        self
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

#[async_trait]
impl Dispatcher for Scripted {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.seen.lock().unwrap().push(Seen {
            id: delivery.envelope.id,
            attempt: delivery.attempt,
        });
        let Some(script) = self.scripts.get(delivery.envelope.event_type.as_str()) else {
            return Ok(Delivered::Handled);
        };
        match script(delivery.clone()).await {
            Ok(()) => Ok(Delivered::Handled),
            Err(kind) => Err(Failure::new(kind, "as the script says")),
        }
    }

    fn policy(&self, event_type: &EventType) -> Policy {
        self.policies
            .get(event_type.as_str())
            .cloned()
            .unwrap_or_default()
    }
}

pub(crate) fn event(event_type: &str) -> Envelope {
    let event_type = EventType::new(event_type).unwrap();
    Envelope::new(
        EventId::new(),
        event_type,
        Payload::from_json("{}"),
        Timestamp::now(),
    )
}

pub(crate) fn keyed(event_type: &str, key: &str) -> Envelope {
    let mut envelope = event(event_type);
    envelope.ordering_key = Some(OrderingKey::new(key).unwrap());
    envelope
}

/// Waits until the condition holds; fails after ten minutes of the test's clock.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(600);
    let mut pause = Duration::from_millis(1);
    while Instant::now() < end {
        if condition() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause + pause / 50).min(Duration::from_millis(100));
    }
    panic!("never came about: {what}");
}

pub(crate) fn source() -> Arc<MemorySource> {
    Arc::new(MemorySource::new())
}
