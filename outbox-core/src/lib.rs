//! The traits, the relay and the in-memory source of the outbox: no database, no broker.
//!
//! A service changes its own data and must tell others about it. The transactional outbox writes an **event** in the same
//! transaction as the change; a **relay** later delivers every committed event **at least once**. This crate holds the
//! relay and the shapes around it; where events are stored and where they go is the business of other crates.
//!
//! ```text
//!   Source ──claim──▶ Relay ──dispatch──▶ Dispatcher ──▶ handlers, a topic, …
//!      ▲                │
//!      └────settle──────┘
//! ```
//!
//! # A first relay
//!
//! Events in memory, and a dispatcher that prints them:
//!
//! ```
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! use outbox_core::memory::{MemorySource, Status};
//! use outbox_core::{Delivered, Delivery, Dispatcher, Event, Failure, Relay};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct OrderPlaced { order: u64 }
//!
//! impl Event for OrderPlaced {
//!     const EVENT_TYPE: &'static str = "OrderPlaced";
//! }
//!
//! struct Printer;
//!
//! #[async_trait]
//! impl Dispatcher for Printer {
//!     async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
//!         println!("{} {}", delivery.envelope.event_type, delivery.envelope.payload.as_str());
//!         Ok(Delivered::Handled)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = Arc::new(MemorySource::new());
//! let id = source.publish(&OrderPlaced { order: 7 })?;
//!
//! let relay = Relay::builder(source.clone(), Arc::new(Printer)).build()?.spawn();
//! while source.status(id) != Some(Status::Completed) {
//!     tokio::task::yield_now().await;
//! }
//! let report = relay.shutdown().await?;
//!
//! assert_eq!(report.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to read on
//!
//! | To | Read |
//! | --- | --- |
//! | define an event | [`Event`], [`Envelope`] |
//! | react to one | [`Handler`], [`HandlerError`], [`Context`] |
//! | run the loop, tune it, stop it | [`Relay`], [`RelayBuilder`], [`RelayHandle`], [`RelaySettings`] |
//! | decide about retries, timeouts, keys | [`Policy`], [`RetryPolicy`], [`KeyPolicy`] |
//! | see how it is doing | [`Health`], [`Report`], [`telemetry`] |
//! | write a transport | [`Dispatcher`] and its contract |
//! | write a source | [`Source`], its contract, and the suite that checks it (feature `conformance`) |
//! | test without a database | [`memory`] |
//!
//! # What holds
//!
//! - An event is completed only after its dispatcher said so. What was published is delivered, again and again if need
//!   be, until it is completed or, its attempts used up, a dead letter.
//! - *At least once*: a crash between a delivery and its record repeats the delivery. Handlers have to be idempotent.
//! - Events of one ordering key are delivered one at a time in publish order; others concurrently. A slow delivery holds
//!   up nothing but itself and its key.
//! - A claim is held by a lease with a token. A relay that was paused past its lease cannot record anything any more.
//! - Trouble with the store or the transport costs no event an attempt; a failing or panicking handler costs its own
//!   event one.
//! - A stop takes the grace period and [`Relay::STOP_SLACK`] at most, and leaves nothing claimed.
//!
//! # Features
//!
//! - `conformance`: the contract of [`Source`] as a test suite. Off by default.

#[cfg(feature = "conformance")]
pub mod conformance;
mod context;
mod dispatcher;
mod envelope;
mod error;
mod event;
mod handler;
mod id;
mod json;
mod key_text;
pub mod memory;
mod new_event;
mod policy;
mod prefix;
mod relay;
mod route;
mod settings;
mod source;
pub mod telemetry;
mod text;

pub use context::{Context, State};
pub use dispatcher::{Delivered, Delivery, Dispatcher, Failure, FailureKind, Limits, RunResult};
pub use envelope::{Envelope, Headers, Payload, header};
pub use error::{BoxError, ConfigError, SourceError, SourceErrorKind};
pub use event::Event;
pub use handler::{Handler, HandlerError};
pub use id::{ClaimToken, EventId, Position};
pub use new_event::{
    Due, HEADER_BYTES_MAX, IntoNewEvent, InvalidEvent, NewEvent, PAYLOAD_BYTES_MAX, PublishError, Published,
};
pub use policy::{KeyPolicy, Next, Policy, RetryPolicy};
pub use prefix::PrefixTracker;
pub use relay::{Breaker, Health, Relay, RelayBuilder, RelayError, RelayHandle, Report};
pub use route::{FanOut, Router};
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
