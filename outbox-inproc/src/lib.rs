//! In-process dispatch: every event to all handlers registered for its type, at the same time.
//!
//! # Overview
//! A [`Registry`] says which handlers take which events; [`Registry::build`] makes the [`InProcDispatcher`] that a
//! relay delivers through.
//!
//! ```
//! use outbox_core::{Context, Event, HandlerError};
//! use outbox_inproc::Registry;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct OrderPlaced { order: u64 }
//!
//! impl Event for OrderPlaced {
//!     const EVENT_TYPE: &'static str = "OrderPlaced";
//! }
//!
//! async fn charge(event: OrderPlaced, _: Context) -> Result<(), HandlerError> {
//!     println!("charging order {}", event.order);
//!     Ok(())
//! }
//!
//! # fn main() -> Result<(), outbox_inproc::RegistryError> {
//! let dispatcher = Registry::new()
//!     .on::<OrderPlaced>("billing", charge)
//!     .on::<OrderPlaced>("mail", |event: OrderPlaced, _: Context| async move {
//!         println!("thank you for order {}", event.order);
//!         Ok(())
//!     })
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Names
//! Each handler has a name, unique among the handlers of its event type. It is stored beside an event that failed in
//! part, so that the next try runs only what has not succeeded. It is therefore given by hand and not taken from the
//! Rust type: moving code must not make a handler run twice. Renaming a handler makes it a new one for events in
//! flight: it may see an event that it has already handled.
//!
//! # Failure
//! A handler that fails, panics or runs out of time harms nobody else's try of the same event.
//!
//! | Handlers of one event | The event |
//! | --- | --- |
//! | all succeeded | is completed |
//! | some ask for another try | is tried again; those that succeeded or refused do not run again |
//! | the rest refused it ([`Reject`](outbox_core::HandlerError::Reject)) | fails, and the text names who refused, and why |
//! | all that failed say [`Outage`](outbox_core::HandlerError::Outage) | is tried again, no attempt is charged |
//!
//! Panics are caught unless the program is built with `panic = "abort"`. A panic while another one unwinds aborts the
//! process in any Rust program; the relay counts that as a lost claim.
//!
//! # Time
//! A handler's time is up at its own timeout or at the delivery's deadline, whichever comes first. Then its
//! [`Context::cancelled`](outbox_core::Context::cancelled) token fires; a handler that returns within [`WIND_DOWN`] has its
//! result counted, any other is dropped. The same holds when the relay calls the delivery off.
//!
//! All handlers of one event share one task. A handler that blocks its thread holds up its siblings: move blocking work to
//! `tokio::task::spawn_blocking`.

mod discover;
mod dispatcher;
mod erased;
mod error;
mod guard;
mod merge;
mod options;
mod outcome;
mod part;
mod registry;

pub use dispatcher::InProcDispatcher;
pub use error::RegistryError;
pub use options::{HandlerOptions, Unhandled};
pub use part::WIND_DOWN;
pub use registry::Registry;

/// What the code written by `#[on_event]` refers to. Not for use by hand, and free to change.
#[doc(hidden)]
pub mod __private {
    pub use crate::discover::{Discovered, default_name};
    pub use crate::{HandlerOptions, Registry};
    pub use inventory;
    pub use outbox_core::{Context, HandlerError, KeyPolicy, RetryPolicy};
}
