//! Relays and publishers as processes that may be killed at any time, the history that they write, and a checker that
//! says afterwards whether anything was lost, invented, altered, repeated without a reason, or out of order.
//!
//! ```text
//! a test, or `outbox-chaos run`
//!    │ one line of JSON on stdin              all append to one folder of histories
//!    ├──▶ outbox-chaos publisher ──▶ commits, rollbacks, savepoints ──▶ Postgres
//!    ├──▶ outbox-chaos relay ──▶ handlers that follow the script in each event
//!    └──▶ faults: signals, restarts, cut connections                 then: history::check
//! ```
//!
//! A child ends when its stdin does, so none outlives whoever started it.

pub mod child;
pub mod history;
mod publisher;
pub mod reckoning;
mod relay;
mod run;
mod script;

pub use publisher::{Keys, PublisherConfig, publish};
pub use relay::{RelayConfig, relay};
pub use run::{Outcome, RunConfig, redrive, run};
pub use script::{Act, Parking, Scripted};
