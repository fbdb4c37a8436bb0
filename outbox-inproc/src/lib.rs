//! Concurrent in-process dispatch to registered handlers.
