//! A source that will not hold some of what it is given.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::{MemorySource, Status};
use outbox_core::{Delivered, Delivery, Dispatcher, EventId, Failure, FailureKind, Relay, RelayHandle};

use crate::world::{Faults, Faulty, event, source, until};

/// Rejects what is bad, with a text that not every database can hold.
struct Wordy;

#[async_trait]
impl Dispatcher for Wordy {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        match delivery.envelope.event_type.as_str() {
            "Bad" => Err(Failure::new(FailureKind::Reject, "a crab 🦀, and a ümlaut")),
            _ => Ok(Delivered::Handled),
        }
    }
}

fn publish(memory: &MemorySource, event_type: &str) -> EventId {
    let envelope = event(event_type);
    let id = envelope.id;
    memory.publish_envelope(envelope);
    id
}

fn relay(memory: &Arc<MemorySource>, faults: Faults) -> RelayHandle {
    let faulty = Faulty::new(Arc::clone(memory));
    faulty.set(faults);
    let builder = Relay::builder(Arc::new(faulty), Arc::new(Wordy));
    builder.build().unwrap().spawn()
}

#[tokio::test(start_paused = true)]
async fn an_error_that_cannot_be_stored_as_it_is_holds_up_nobody() {
    let memory = source();
    let good: Vec<EventId> = (0..20).map(|_| publish(&memory, "Plain")).collect();
    let bad = publish(&memory, "Bad");

    let faults = Faults {
        refuse_wide_text: true,
        ..Faults::none()
    };
    let relay = relay(&memory, faults);

    until("all are settled", || memory.counts().pending == 0).await;
    relay.shutdown().await.unwrap();
    assert!(
        good.iter()
            .all(|id| memory.status(*id) == Some(Status::Completed))
    );
    assert_eq!(memory.status(bad), Some(Status::Failed));
    assert_eq!(memory.last_error(bad).unwrap(), "a crab ?, and a ?mlaut");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_is_always_refused_holds_up_nobody_and_is_not_lost() {
    let memory = source();
    let refused = publish(&memory, "Plain");
    let good: Vec<EventId> = (0..20).map(|_| publish(&memory, "Plain")).collect();

    let faults = Faults {
        refuse: Some(refused),
        ..Faults::none()
    };
    let relay = relay(&memory, faults);

    until("the others are settled", || {
        memory.counts().completed == good.len()
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    relay.shutdown().await.unwrap();
    assert_eq!(memory.status(refused), Some(Status::Pending));
}
