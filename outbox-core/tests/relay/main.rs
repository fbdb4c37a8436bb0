//! The relay on the in-memory source, with time and faults under control.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod blocking;
mod breaker;
mod delivering;
mod failing;
mod history;
mod hot_key;
mod pausing;
mod refusing;
mod runs;
mod saying;
mod settling;
mod simulation;
mod stopping;
mod unread;
mod world;
