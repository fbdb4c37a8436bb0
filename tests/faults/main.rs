//! Faults, on a real Postgres: what must hold whatever happens to relays, handlers, connections, the server, its
//! settings, and to futures that somebody drops.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has to panic"
)]

mod dropped;
mod handlers;
mod invariants;
mod migrations;
mod plan;
mod pooler;
mod publishing;
mod server;
mod session_defaults;
mod stop;
mod wake;
mod watch;
mod world;
