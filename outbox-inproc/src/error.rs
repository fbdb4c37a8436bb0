//! Why a registry cannot be used.

use outbox_core::TextError;

/// A registry that cannot be used. Nothing of it is recoverable at run time: the program has to be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No handler at all: every event would be completed unseen.
    #[error(
        "no handler is registered, so every event would be completed unseen; register one with `on`, call `discover`, or say `allow_empty`"
    )]
    Empty,
    /// Two handlers of one event type have one name.
    #[error("two handlers of `{event_type}` are named `{name}`: {first} and {second}; give one another name")]
    Duplicate {
        /// The event type.
        event_type: String,
        /// The name that both have.
        name: String,
        /// The handler registered first: its Rust type and where it was registered.
        first: String,
        /// The one registered second.
        second: String,
    },
    /// A handler's name cannot be used.
    #[error("handler {handler} of `{event_type}` cannot be named {name:?}: {reason}")]
    HandlerName {
        /// The event type.
        event_type: String,
        /// The name that was refused.
        name: String,
        /// The handler's Rust type and where it was registered.
        handler: String,
        /// What is wrong with the name.
        reason: String,
    },
    /// An event's type name cannot be used.
    #[error("`{rust_type}` has an event type that cannot be used")]
    EventType {
        /// The Rust type of the event.
        rust_type: &'static str,
        /// What is wrong with the name.
        source: TextError,
    },
    /// A handler lacks something that it needs.
    #[error("handler {handler} of `{event_type}` cannot run: {reason}")]
    Unfit {
        /// The event type.
        event_type: String,
        /// The handler's Rust type and where it was registered.
        handler: String,
        /// What it lacks, and how to add it.
        reason: String,
    },
    /// A handler has no time to run in.
    #[error("the timeout of handler `{name}` of `{event_type}` is zero; leave it out or give it time")]
    ZeroTimeout {
        /// The event type.
        event_type: String,
        /// The handler's name.
        name: String,
    },
}
