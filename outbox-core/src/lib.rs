//! The traits, the relay and the in-memory source of the outbox: no database, no broker.

#[cfg(feature = "conformance")]
pub mod conformance;
mod context;
mod dispatcher;
mod encode;
mod envelope;
mod error;
mod event;
mod handler;
mod id;
mod key_text;
pub mod memory;
mod new_event;
mod policy;
mod prefix;
mod relay;
mod settings;
mod source;
pub mod telemetry;
mod text;

pub use context::{Context, State};
pub use dispatcher::{Delivered, Delivery, Dispatcher, Failure, FailureKind, Limits, RunResult};
pub use encode::EncodeError;
pub use envelope::{Envelope, Headers, Payload, header};
pub use error::{BoxError, ConfigError, SourceError, SourceErrorKind};
pub use event::Event;
pub use handler::{Handler, HandlerError};
pub use id::{ClaimToken, EventId, Position};
pub use new_event::{Due, HEADER_BYTES_MAX, IntoNewEvent, InvalidEvent, NewEvent, PublishError, Published};
pub use policy::{KeyPolicy, Next, Policy, RetryPolicy};
pub use prefix::PrefixTracker;
pub use relay::{Health, Relay, RelayBuilder, RelayError, RelayHandle, Report};
pub use settings::{DatabaseUrl, RelaySettings, variable};
pub use source::{
    ClaimRequest, Claimed, Listening, Outcome, Settled, Settlement, Source, Undecodable, Wakeup,
};
pub use text::{AggregateId, AggregateType, EventType, OrderingKey, PartName, TenantId, TextError};

/// What the code written by `#[derive(Event)]` refers to. Not for use by hand, and free to change.
#[doc(hidden)]
pub mod __private {
    pub use crate::key_text::{KeyText, TextOf, TextOfAny};
}
