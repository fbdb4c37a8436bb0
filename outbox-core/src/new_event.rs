//! An event on its way into the outbox.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::{
    AggregateId, AggregateType, BoxError, Envelope, Event, EventId, EventType, Headers, OrderingKey, Payload,
    TenantId, TextError, header, json,
};

/// When an event becomes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Due {
    /// As soon as it is committed.
    #[default]
    AtOnce,
    /// At an instant, by the clock of the store.
    At(Timestamp),
    /// This long after it was published, by the clock of the store.
    After(Duration),
}

/// An event that a publisher will not take. Nothing was sent to the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidEvent {
    /// A name or a key is not acceptable.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The value cannot be JSON.
    #[error("event {event_type} cannot be serialised")]
    Payload {
        /// The event's type.
        event_type: &'static str,
        /// Why.
        #[source]
        cause: serde_json::Error,
    },
    /// The payload, put together by hand, is no JSON, or not such that handlers can read it back: nested too deep, or with
    /// half of a surrogate pair.
    #[error("event {event_type} has a payload that {problem}")]
    NotJson {
        /// The event's type.
        event_type: EventType,
        /// What is wrong, and where; nothing of the payload.
        problem: String,
    },
    /// The payload is too large.
    #[error("event {event_type} has a payload of {bytes} bytes; at most {limit} are accepted")]
    TooLarge {
        /// The event's type.
        event_type: EventType,
        /// The payload's size.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A header is not acceptable.
    #[error("header {name:?} of event {event_type} {problem}")]
    Header {
        /// The event's type.
        event_type: EventType,
        /// The header's name.
        name: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// One of several events that are published together.
    #[error("event {number} of the list: {}", with_causes(cause))]
    Nth {
        /// Its place in the list, from 1.
        number: usize,
        /// What is wrong with it.
        cause: Box<InvalidEvent>,
    },
}

impl InvalidEvent {
    /// Says which event of a list it is that is refused; the first has number 1.
    #[must_use]
    pub fn of_list(self, number: usize) -> Self {
        Self::Nth {
            number,
            cause: Box::new(self),
        }
    }
}

fn with_causes(error: &InvalidEvent) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// An event with everything that travels with it, ready to be published.
///
/// Made from an [`Event`] by [`NewEvent::of`], and changed by its `with_` methods. `Debug` leaves out the payload and the
/// headers' values.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewEvent {
    /// The event's id; a new one unless set.
    pub id: EventId,
    /// What kind of fact it is.
    pub event_type: EventType,
    /// What kind of thing it is about.
    pub aggregate_type: Option<AggregateType>,
    /// Which thing it is about.
    pub aggregate_id: Option<AggregateId>,
    /// The key within which order is kept.
    pub ordering_key: Option<OrderingKey>,
    /// Whose event it is; `None`: the publisher's tenant. The empty tenant is nobody.
    pub tenant_id: Option<TenantId>,
    /// The content.
    pub payload: Payload,
    /// What travels beside it.
    pub headers: Headers,
    /// When it becomes due.
    pub due: Due,
}

impl fmt::Debug for NewEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewEvent")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("ordering_key", &self.ordering_key)
            .field("tenant_id", &self.tenant_id)
            .field("payload", &self.payload)
            .field("headers", &self.headers.keys())
            .field("due", &self.due)
            .finish()
    }
}

/// The most bytes of payload that an event may have unless a publisher says otherwise: 1 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

/// The most bytes that the headers of one event may have together.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;

impl NewEvent {
    /// Takes an event's names from its type and its content from its value.
    ///
    /// # Errors
    /// [`InvalidEvent`] when a name is not acceptable or the value cannot be JSON.
    pub fn of<E: Event>(event: &E) -> Result<Self, InvalidEvent> {
        let payload = Payload::encode(event).map_err(|cause| InvalidEvent::Payload {
            event_type: E::EVENT_TYPE,
            cause,
        })?;
        let mut headers = Headers::new();
        if E::SCHEMA_VERSION > 1 {
            headers.insert(header::SCHEMA_VERSION.to_owned(), E::SCHEMA_VERSION.to_string());
        }
        Ok(Self {
            id: EventId::new(),
            event_type: EventType::new(E::EVENT_TYPE)?,
            aggregate_type: E::AGGREGATE_TYPE.map(AggregateType::new).transpose()?,
            aggregate_id: event.aggregate_id().map(AggregateId::new).transpose()?,
            ordering_key: event.ordering_key().map(OrderingKey::new).transpose()?,
            tenant_id: None,
            payload,
            headers,
            due: Due::AtOnce,
        })
    }

    /// An event put together by hand, for publishers that have no Rust type for it.
    #[must_use]
    pub fn raw(event_type: EventType, payload: Payload) -> Self {
        Self {
            id: EventId::new(),
            event_type,
            aggregate_type: None,
            aggregate_id: None,
            ordering_key: None,
            tenant_id: None,
            payload,
            headers: Headers::new(),
            due: Due::AtOnce,
        }
    }

    /// Sets the id: publishing the same id again within a tenant adds nothing.
    #[must_use]
    pub fn with_id(mut self, id: EventId) -> Self {
        self.id = id;
        self
    }

    /// Sets the tenant.
    #[must_use]
    pub fn with_tenant(mut self, tenant_id: TenantId) -> Self {
        self.tenant_id = Some(tenant_id);
        self
    }

    /// Sets the ordering key.
    #[must_use]
    pub fn with_ordering_key(mut self, ordering_key: OrderingKey) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// Adds a header, or replaces it.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }

    /// Makes it follow from an event: names that one as its cause, stays in its business process, and takes on its
    /// tenant, if that has one. What is set already stays.
    #[must_use]
    pub fn caused_by(mut self, cause: &Envelope) -> Self {
        let id = cause.id.to_string();
        let correlation = cause.headers.get(header::CORRELATION_ID).unwrap_or(&id).clone();
        for (name, value) in [(header::CORRELATION_ID, correlation), (header::CAUSATION_ID, id)] {
            self.headers.entry(name.to_owned()).or_insert(value);
        }
        if self.tenant_id.is_none() && !cause.tenant_id.is_none() {
            self.tenant_id = Some(cause.tenant_id.clone());
        }
        self
    }

    /// Makes it due at an instant.
    #[must_use]
    pub fn deliver_at(mut self, instant: Timestamp) -> Self {
        self.due = Due::At(instant);
        self
    }

    /// Makes it due a while after it was published.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.due = Due::After(delay);
        self
    }

    /// The event as a store holds it that took it at that time.
    pub(crate) fn into_envelope(self, created_at: Timestamp) -> Envelope {
        Envelope {
            id: self.id,
            event_type: self.event_type,
            aggregate_type: self.aggregate_type,
            aggregate_id: self.aggregate_id,
            ordering_key: self.ordering_key,
            tenant_id: self.tenant_id.unwrap_or_default(),
            payload: self.payload,
            headers: self.headers,
            created_at,
        }
    }

    /// Checks what a store cannot hold or a transport cannot carry.
    ///
    /// # Errors
    /// [`InvalidEvent`] says what is wrong, with the limit.
    pub fn check(&self, payload_bytes_max: usize) -> Result<(), InvalidEvent> {
        if self.payload.len() > payload_bytes_max {
            return Err(InvalidEvent::TooLarge {
                event_type: self.event_type.clone(),
                bytes: self.payload.len(),
                limit: payload_bytes_max,
            });
        }
        if let Err(problem) = json::check(self.payload.as_str()) {
            return Err(InvalidEvent::NotJson {
                event_type: self.event_type.clone(),
                problem,
            });
        }
        let refuse = |name: &str, problem: String| InvalidEvent::Header {
            event_type: self.event_type.clone(),
            name: name.chars().take(100).collect(),
            problem,
        };
        for (name, value) in &self.headers {
            if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
                return Err(refuse(
                    name,
                    "has a bad name; it takes 1 to 200 bytes without control characters".to_owned(),
                ));
            }
            if value.contains('\0') {
                return Err(refuse(name, "holds a NUL character; remove it".to_owned()));
            }
        }
        let bytes: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes > HEADER_BYTES_MAX {
            let largest = self
                .headers
                .iter()
                .max_by_key(|(_, value)| value.len())
                .map_or("", |(name, _)| name);
            let problem = format!(
                "is the largest of {bytes} bytes of headers; at most {HEADER_BYTES_MAX} are accepted"
            );
            return Err(refuse(largest, problem));
        }
        Ok(())
    }
}

/// What a publisher takes: a reference to an [`Event`], or a [`NewEvent`].
pub trait IntoNewEvent {
    /// Puts the event together.
    ///
    /// # Errors
    /// [`InvalidEvent`] when a name is not acceptable or the value cannot be JSON.
    fn into_new_event(self) -> Result<NewEvent, InvalidEvent>;
}

impl<E: Event> IntoNewEvent for &E {
    fn into_new_event(self) -> Result<NewEvent, InvalidEvent> {
        NewEvent::of(self)
    }
}

impl IntoNewEvent for NewEvent {
    fn into_new_event(self) -> Result<NewEvent, InvalidEvent> {
        Ok(self)
    }
}

/// What publishing did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// How many events are new; the others' ids were there already.
    pub new: u64,
    /// How many were already there.
    pub known: u64,
}

impl Published {
    /// Counts what was new among `all`.
    #[must_use]
    pub const fn of(new: u64, all: u64) -> Self {
        Self {
            new,
            known: all.saturating_sub(new),
        }
    }
}

/// An event could not be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The event was refused before anything was sent: the caller's transaction is as usable as before.
    #[error(transparent)]
    Invalid(#[from] InvalidEvent),
    /// The store failed; the caller's transaction has to be rolled back.
    #[error("event not published")]
    Store(#[source] BoxError),
}
