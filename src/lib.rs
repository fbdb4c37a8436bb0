//! The transactional outbox: publish in the transaction of a change, deliver every committed event at least once.

pub use outbox_core::*;

#[cfg(feature = "inproc")]
pub use outbox_inproc::{HandlerOptions, InProcDispatcher, Registry, RegistryError, Unhandled, WIND_DOWN};

#[cfg(feature = "kafka")]
pub use outbox_kafka as kafka;

#[cfg(feature = "macros")]
pub use outbox_macros::{Event, on_event};

/// What the code written by the macros refers to. Not for use by hand, and free to change.
#[doc(hidden)]
pub mod __private {
    pub use outbox_core::__private::{KeyText, TextOf, TextOfAny};
    #[cfg(feature = "inproc")]
    pub use outbox_inproc::__private::{
        Context, Discovered, HandlerError, HandlerOptions, KeyPolicy, RetryPolicy, default_name, inventory,
    };
}
