//! The transactional outbox: publish in the transaction of a change, deliver every committed event at least once.

pub use outbox_core::*;

#[cfg(feature = "inproc")]
pub use outbox_inproc::{HandlerOptions, InProcDispatcher, Registry, RegistryError, Unhandled, WIND_DOWN};

#[cfg(feature = "kafka")]
pub use outbox_kafka as kafka;
