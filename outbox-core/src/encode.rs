//! From a user's event to its envelope: the one place where names and payload are checked.

use jiff::Timestamp;

use crate::{
    AggregateId, AggregateType, Envelope, Event, EventId, EventType, OrderingKey, Payload, TextError, header,
};

/// Why an event cannot be stored. Found before any statement is sent, so a transaction stays usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A name or a key is not acceptable.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The value cannot be JSON.
    #[error("event {event_type} cannot be encoded as JSON")]
    Payload {
        /// The event's type.
        event_type: &'static str,
        /// What the encoder said.
        source: serde_json::Error,
    },
}

impl Envelope {
    /// Makes the envelope of an event, with a new id.
    ///
    /// # Errors
    /// [`EncodeError`] when a name is not acceptable or the value cannot be JSON.
    pub fn from_event<E: Event>(event: &E, created_at: Timestamp) -> Result<Self, EncodeError> {
        let payload = Payload::encode(event).map_err(|source| EncodeError::Payload {
            event_type: E::EVENT_TYPE,
            source,
        })?;
        let event_type = EventType::new(E::EVENT_TYPE)?;
        let mut envelope = Self::new(EventId::new(), event_type, payload, created_at);
        envelope.aggregate_type = E::AGGREGATE_TYPE.map(AggregateType::new).transpose()?;
        envelope.aggregate_id = event.aggregate_id().map(AggregateId::new).transpose()?;
        envelope.ordering_key = event.ordering_key().map(OrderingKey::new).transpose()?;
        if E::SCHEMA_VERSION > 1 {
            envelope
                .headers
                .insert(header::SCHEMA_VERSION.to_owned(), E::SCHEMA_VERSION.to_string());
        }
        Ok(envelope)
    }
}
