//! Instants of Postgres: microseconds since the year 2000, UTC, whatever the session's time zone.
//!
//! The published bridge between jiff and sqlx is for jiff 0.2; these few lines are for 1.0.

use jiff::Timestamp;
use sqlx::postgres::PgValueRef;

/// 2000-01-01 in microseconds since 1970-01-01.
const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// An instant as microseconds since 1970-01-01, for SQL to turn into a `timestamptz`.
pub(crate) fn to_micros(instant: Timestamp) -> i64 {
    instant.as_microsecond()
}

/// A `timestamptz` in the binary format. `None`: NULL, infinite, or beyond what jiff knows.
pub(crate) fn from_value(value: &PgValueRef<'_>) -> Option<Timestamp> {
    let bytes: [u8; 8] = value.as_bytes().ok()?.try_into().ok()?;
    let micros = i64::from_be_bytes(bytes).checked_add(POSTGRES_EPOCH_US)?;
    Timestamp::from_microsecond(micros).ok()
}
