//! Events that can be recognised wherever they turn up.

use std::sync::Arc;

use jiff::Timestamp;
use outbox_core::{Envelope, Event, EventId, EventType, OrderingKey, Payload};
use serde::{Deserialize, Serialize};

/// The `n`th event of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Id {
    pub(crate) key: u32,
    pub(crate) n: u64,
}

/// The events' type, for handlers.
#[derive(Serialize, Deserialize)]
pub(crate) struct Counted {
    #[serde(flatten)]
    pub(crate) id: Id,
}

impl Event for Counted {
    const EVENT_TYPE: &'static str = "Counted";
}

pub(crate) const fn id(key: u32, n: u64) -> Id {
    Id { key, n }
}

/// Event `i` is event `i / keys` of key `i % keys`: all keys grow evenly.
pub(crate) fn events(count: usize, keys: usize) -> Vec<Id> {
    (0..count)
        .map(|i| id((i % keys) as u32, (i / keys) as u64))
        .collect()
}

pub(crate) fn envelope(id: Id) -> Arc<Envelope> {
    envelope_of_size(id, 300)
}

pub(crate) fn envelope_of_size(id: Id, bytes: usize) -> Arc<Envelope> {
    #[derive(Serialize)]
    struct Padded {
        #[serde(flatten)]
        id: Id,
        padding: String,
    }
    let padding = "x".repeat(bytes.saturating_sub(50));
    let uuid = uuid::Uuid::from_u64_pair(u64::from(id.key), id.n);
    let mut envelope = Envelope::new(
        EventId::from_uuid(uuid),
        EventType::new("Counted").unwrap(),
        Payload::encode(&Padded { id, padding }).unwrap(),
        Timestamp::UNIX_EPOCH,
    );
    envelope.ordering_key = Some(OrderingKey::new(id.key.to_string()).unwrap());
    Arc::new(envelope)
}

/// Which event a record's value is.
pub(crate) fn recognise(value: &[u8]) -> Option<Id> {
    serde_json::from_slice(value).ok()
}
