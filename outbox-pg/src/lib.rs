//! The outbox on Postgres: publisher, source, migrations.

pub mod admin;
mod barrier;
mod begin;
mod driver;
mod error;
mod inbox;
mod instant;
mod migrate;
mod names;
mod publisher;
mod rights;
mod source;
mod sql;

pub use barrier::{DeliveryState, wait_delivered};
pub use driver::PublishStatement;
pub use inbox::{
    Batched, Deduplicated, PgInbox, PublishFollowUp, Transactional, TxBatchHandler, TxBatchHandlerFn,
    TxHandler, TxHandlerFn,
};
pub use migrate::{MigrateError, SCHEMA_VERSION, check_version, migrate, migration_sql};
pub use names::Names;
pub use publisher::PgPublisher;
pub use rights::Rights;
pub use source::{PgSource, PgSourceBuilder, StartError};

/// What the code written by `#[on_event]` refers to. Not for use by hand, and free to change.
#[doc(hidden)]
pub mod __private {
    pub use crate::inbox::FromState;
    pub use sqlx::PgConnection;
}
