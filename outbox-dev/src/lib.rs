//! A Postgres for examples and tests, whatever the machine has to offer. Never published.
//!
//! ```no_run
//! # async fn a_test() -> Result<(), outbox_dev::DevError> {
//! use outbox_dev::TestDatabase;
//!
//! let database = TestDatabase::create().await?;     // empty, with a name of its own
//! sqlx::query("SELECT 1").execute(database.pool()).await?;
//! # Ok(()) }                                        // dropped here; kept if the test panicked
//! ```
//!
//! # Where the server comes from
//!
//! Three ways, tried in this order; one that fails says so on stderr and the next is tried:
//!
//! | Way | Needs | Settings |
//! | --- | --- | --- |
//! | `url` | a running server | `DATABASE_URL`; its user must be allowed to create databases |
//! | `docker` | a Docker engine that answers | `OUTBOX_POSTGRES_IMAGE`, default `postgres:17`; `OUTBOX_DEV_DOCKER_NETWORK=host` where published ports cannot be reached |
//! | `local` | `initdb`, `pg_ctl` and `postgres` | `OUTBOX_POSTGRES_BIN`, default: `PATH`, then the newest `/usr/lib/postgresql/*/bin` |
//!
//! `OUTBOX_DEV_POSTGRES=url|docker|local` forces one. `OUTBOX_DEV_KEEP=1` leaves the server running at
//! the end, to look at a database that a failed test kept.
//!
//! # Life time
//!
//! A server lives as long as its handle, and never longer than the process: a supervisor (a small shell
//! process) holds the other end of a pipe, sees it close however the owner ends (return, panic, Ctrl-C,
//! SIGKILL), stops the server and removes its files. Nothing depends on `Drop` being run.

mod cluster;
mod container;
mod database;
mod error;
mod kafka;
mod pooler;
mod postgres;
mod proxy;
mod supervisor;
mod way;

pub use database::TestDatabase;
pub use error::DevError;
pub use kafka::{DevKafka, KafkaOptions, KafkaStop};
pub use pooler::Pooler;
pub use postgres::{DevPostgres, ServerOptions, Stop};
pub use proxy::{Mode, Proxy};
pub use way::Way;
