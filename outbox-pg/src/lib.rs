//! The outbox on Postgres: publisher, source, migrations.

pub mod admin;
mod error;
mod inbox;
mod instant;
mod migrate;
mod names;
mod publisher;
mod rights;
mod source;
mod sql;

pub use inbox::{
    Batched, Deduplicated, PgInbox, PublishFollowUp, Transactional, TxBatchHandler, TxBatchHandlerFn,
    TxHandler, TxHandlerFn,
};
pub use migrate::{MigrateError, SCHEMA_VERSION, check_version, migrate, migration_sql};
pub use names::Names;
pub use publisher::{PAYLOAD_BYTES_MAX, PgPublisher};
pub use rights::Rights;
pub use source::{PgSource, PgSourceBuilder, StartError};
