//! What a relay did, and why it could not.

use crate::ConfigError;

/// What a relay did between its start and its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Events claimed, redeliveries included.
    pub claimed: u64,
    /// Recorded as completed.
    pub completed: u64,
    /// Of the completed ones, those of a type that nobody listens for.
    pub unhandled: u64,
    /// Recorded as failed tries that are tried again.
    pub retried: u64,
    /// Recorded as dead letters.
    pub failed: u64,
    /// Handed back without a charge.
    pub released: u64,
    /// Deliveries whose claim was lost before their outcome was recorded: they are delivered again.
    pub lost: u64,
    /// Events that were still claimed at the end, because the source did not answer. They come back by their lease.
    pub left_claimed: u64,
    /// Deliveries that ignored their cancellation and still run.
    pub stuck: u64,
}

/// Why a relay did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The dispatcher refuses the set-up.
    #[error("the dispatcher cannot start")]
    Config(#[from] ConfigError),
    /// The relay's task was aborted with its runtime, or panicked: a fault of this library.
    #[error("the relay's task ended unexpectedly")]
    Task(#[from] tokio::task::JoinError),
}
