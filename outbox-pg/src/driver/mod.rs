//! Publishing over other drivers than sqlx, in their transactions.

#[cfg(feature = "diesel-async")]
mod diesel_async;
#[cfg(feature = "sea-orm")]
mod sea_orm;
mod statement;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

pub use self::statement::PublishStatement;
