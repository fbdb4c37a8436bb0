//! The transactional outbox: publish in the transaction of a change, deliver every committed event at least once.
//!
//! Save the order, then publish: a crash in between loses the event. Publish, then save the order: a rollback leaves an
//! event about nothing. Write both in one transaction, and let a relay deliver: that is an outbox.
//!
//! ```
//! use std::sync::Arc;
//! use outbox::{Context, Event, HandlerError, Registry, Relay, memory::MemorySource, on_event};
//!
//! #[derive(serde::Serialize, serde::Deserialize, Event)]
//! #[event(aggregate = "order", id = number)]
//! struct OrderPlaced { number: u64 }
//!
//! // Another module listens.
//! #[on_event]
//! async fn charge(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
//!     println!("charging order {}, try {}", event.number, ctx.attempt());
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // A program keeps events in Postgres; the one in memory is for a first look, and for tests.
//! let source = Arc::new(MemorySource::new());
//! let handlers = Arc::new(Registry::new().discover().build()?);
//! let relay = Relay::builder(source.clone(), handlers).build()?.spawn();
//!
//! source.publish(&OrderPlaced { number: 7 })?;
//! while source.counts().pending > 0 {
//!     tokio::time::sleep(std::time::Duration::from_millis(1)).await;
//! }
//!
//! let report = relay.shutdown().await?;
//! assert_eq!(report.completed, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Where to begin
//!
//! | For | See |
//! | --- | --- |
//! | saying what happened | [`Event`], [`NewEvent`], [`PgPublisher`] |
//! | reacting to it | [`Handler`], [`on_event`], [`Registry`], [`HandlerError`]; once per event: [`PgInbox`] |
//! | delivering | [`PgSource`], [`Relay`], [`RelaySettings`] |
//! | setting up, and looking | [`migrate`], [`admin`], [`Health`] |
//! | another way in between | `kafka`, [`Router`], [`FanOut`] |
//! | a source or dispatcher of your own | [`Source`], [`Dispatcher`] |
//!
//! # Features
//!
//! | Feature | Brings | On by default |
//! | --- | --- | --- |
//! | `pg` | publisher, source and migrations for Postgres | yes |
//! | `inproc` | handlers in the process of the relay | yes |
//! | `macros` | `#[derive(Event)]` and `#[on_event]` | yes |
//! | `otel` | metrics and trace context through OpenTelemetry | no |
//! | `prometheus` | the same metrics as Prometheus text | no |
//! | `http` | `/healthz`, `/readyz` and `/metrics` as an axum router | no |
//! | `tokio-postgres`, `diesel-async`, `sea-orm` | publishing in the transactions of these | no |
//! | `kafka` | publishing to and consuming from Kafka; builds librdkafka, a C library | no |

// Events, and how they get into the outbox.
pub use outbox_core::{Due, Event, IntoNewEvent, InvalidEvent, NewEvent, PublishError, Published};
#[cfg(feature = "macros")]
pub use outbox_macros::Event;
#[cfg(feature = "pg")]
pub use outbox_pg::{DeliveryState, Names, PgPublisher, PublishStatement, wait_delivered};

// Handlers, and how they are found.
pub use outbox_core::{Context, Handler, HandlerError, State};
#[cfg(feature = "inproc")]
pub use outbox_inproc::{HandlerOptions, InProcDispatcher, Registry, RegistryError, Unhandled, WIND_DOWN};
#[cfg(feature = "macros")]
pub use outbox_macros::on_event;

// Handlers with one committed effect per event.
#[cfg(feature = "pg")]
pub use outbox_pg::{
    Batched, Deduplicated, PgInbox, PublishFollowUp, Transactional, TxBatchHandler, TxBatchHandlerFn,
    TxHandler, TxHandlerFn,
};

// The relay, and what can be set about it.
pub use outbox_core::{
    Breaker, ConfigError, DatabaseUrl, Health, KeyPolicy, Next, Policy, Relay, RelayBuilder, RelayError,
    RelayHandle, RelaySettings, Report, RetryPolicy, variable,
};

// Where events wait.
pub use outbox_core::memory;
#[cfg(feature = "pg")]
pub use outbox_pg::{
    MigrateError, PgSource, PgSourceBuilder, Rights, SCHEMA_VERSION, StartError, check_version, migrate,
    migration_sql,
};

// Operating: status, redrive, discard, pause, resume, prune.
#[cfg(feature = "pg")]
pub use outbox_pg::admin;

// Other transports, and dispatchers made of dispatchers.
pub use outbox_core::{FanOut, Router};
#[cfg(feature = "kafka")]
/// Kafka: publishing to topics, consuming from them, the mapping between events and records. The crate `outbox-kafka`.
pub use outbox_kafka as kafka;

// Metrics, traces, health.
#[cfg(feature = "prometheus")]
pub use outbox_telemetry::PrometheusText;
#[cfg(feature = "otel")]
pub use outbox_telemetry::{Backlog, LABELS_MAX, OtelMetrics, Sampler, TraceLinks, stamp};
#[cfg(feature = "http")]
pub use outbox_telemetry::{health_router, metrics_router};

// What the parts tell each other; for those who write a source or a dispatcher of their own.
pub use outbox_core::telemetry;
pub use outbox_core::{
    AggregateId, AggregateType, BoxError, ClaimRequest, ClaimToken, Claimed, Delivered, Delivery, Dispatcher,
    Envelope, EventId, EventType, Failure, FailureKind, HEADER_BYTES_MAX, Headers, Limits, Listening,
    OrderingKey, Outcome, PAYLOAD_BYTES_MAX, PartName, Payload, Position, RunResult, Settled, Settlement,
    Source, SourceError, SourceErrorKind, TenantId, TextError, Undecodable, Wakeup, header,
};

/// What the code written by the macros refers to. Not for use by hand, and free to change.
#[doc(hidden)]
pub mod __private {
    pub use outbox_core::__private::{KeyText, TextOf, TextOfAny};
    #[cfg(feature = "inproc")]
    pub use outbox_inproc::__private::{
        Context, Discovered, HandlerError, HandlerOptions, KeyPolicy, RetryPolicy, default_name, inventory,
    };
    #[cfg(feature = "pg")]
    pub use outbox_pg::__private::{FromState, PgConnection};
}

/// The samples of these pages are compiled with the tests.
#[cfg(all(doctest, feature = "pg", feature = "inproc", feature = "macros"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/policies.md")]
    struct Policies;
    #[doc = include_str!("../docs/publishing.md")]
    struct Publishing;
    #[doc = include_str!("../docs/operations.md")]
    struct Operations;
    #[doc = include_str!("../docs/inbox.md")]
    struct Inbox;
}
