//! A stored event: what every source yields and every dispatcher takes.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use crate::{AggregateId, AggregateType, EventId, EventType, OrderingKey, TenantId};

/// Names of the headers that this project reads or writes itself.
pub mod header {
    /// W3C trace context of the publishing request.
    pub const TRACEPARENT: &str = "traceparent";
    /// W3C vendor trace state.
    pub const TRACESTATE: &str = "tracestate";
    /// W3C baggage.
    pub const BAGGAGE: &str = "baggage";
    /// The version of the payload's form; absent means 1.
    pub const SCHEMA_VERSION: &str = "schema-version";
    /// The id of the event whose handling published this one.
    pub const CAUSATION_ID: &str = "causation-id";
    /// The id shared by all events of one business process.
    pub const CORRELATION_ID: &str = "correlation-id";
}

/// Texts that travel beside the payload: trace context, causation, whatever the publisher adds.
pub type Headers = BTreeMap<String, String>;

/// An event's content as JSON text, decoded only when a handler asks for it.
///
/// `Debug` shows the length alone: payloads never reach logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload(Box<str>);

impl Payload {
    /// Takes JSON text as it was stored. It is not parsed here; a text that is no JSON fails when it is decoded.
    #[must_use]
    pub fn from_json(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Serialises a value.
    ///
    /// # Errors
    /// When the value cannot be JSON, such as a map whose keys are no texts.
    pub fn encode<T: serde::Serialize>(value: &T) -> Result<Self, serde_json::Error> {
        serde_json::to_string(value).map(Self::from_json)
    }

    /// Deserialises the payload.
    ///
    /// # Errors
    /// When the text is no JSON or not of the form that `T` wants.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    /// The JSON text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the text is empty, which no JSON is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

/// A stored event.
///
/// `Debug` leaves out the payload and the headers' values.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope {
    /// The event's id.
    pub id: EventId,
    /// What kind of fact it is.
    pub event_type: EventType,
    /// What kind of thing it is about.
    pub aggregate_type: Option<AggregateType>,
    /// Which thing it is about.
    pub aggregate_id: Option<AggregateId>,
    /// The key within which order is kept.
    pub ordering_key: Option<OrderingKey>,
    /// Whose event it is.
    pub tenant_id: TenantId,
    /// The content.
    pub payload: Payload,
    /// What travels beside it.
    pub headers: Headers,
    /// When it was published, by the clock of the store.
    pub created_at: Timestamp,
}

impl Envelope {
    /// An envelope with the given id, type, payload and instant, and nothing else.
    #[must_use]
    pub fn new(id: EventId, event_type: EventType, payload: Payload, created_at: Timestamp) -> Self {
        Self {
            id,
            event_type,
            aggregate_type: None,
            aggregate_id: None,
            ordering_key: None,
            tenant_id: TenantId::default(),
            payload,
            headers: Headers::new(),
            created_at,
        }
    }

    /// The version of the payload's form, from its header; 1 if absent or unreadable.
    #[must_use]
    pub fn schema_version(&self) -> u32 {
        self.headers
            .get(header::SCHEMA_VERSION)
            .and_then(|v| v.parse().ok())
            .unwrap_or(1)
    }

    /// How many bytes of payload and headers it keeps in memory.
    #[must_use]
    pub fn size(&self) -> usize {
        self.payload.len() + self.headers.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>()
    }
}

impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("ordering_key", &self.ordering_key)
            .field("tenant_id", &self.tenant_id)
            .field("payload", &self.payload)
            .field("headers", &self.headers.keys())
            .field("created_at", &self.created_at)
            .finish()
    }
}
