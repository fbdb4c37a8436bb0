//! A relay that runs in a task of its own.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::Relay;
use super::health::Health;
use super::report::{RelayError, Report};

/// A relay that runs in a task of its own.
///
/// Dropping the handle stops nothing: the relay runs on until its runtime ends. Keep the handle to stop it gracefully.
#[derive(Debug)]
#[must_use = "without its handle, a relay cannot be stopped gracefully"]
pub struct RelayHandle {
    stop: CancellationToken,
    hurry: CancellationToken,
    health: Arc<Health>,
    task: JoinHandle<Result<Report, RelayError>>,
}

pub(super) fn spawn(relay: Relay) -> RelayHandle {
    let stop = CancellationToken::new();
    let hurry = CancellationToken::new();
    let health = relay.health();
    let task = tokio::spawn(relay.run(stop.clone().cancelled_owned(), hurry.clone()));
    RelayHandle {
        stop,
        hurry,
        health,
        task,
    }
}

impl RelayHandle {
    /// How the relay is doing.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Asks the relay to stop, without waiting for it. Asked a second time, it ends the grace period at once.
    pub fn stop(&self) {
        if self.stop.is_cancelled() {
            self.hurry.cancel();
        }
        self.stop.cancel();
    }

    /// Asks the relay to stop and waits until it has.
    ///
    /// # Errors
    /// [`RelayError`] when it never started, or ended by a fault of its own.
    ///
    /// # Cancel safety
    /// The relay goes on stopping; what it would have reported is gone.
    pub async fn shutdown(self) -> Result<Report, RelayError> {
        self.stop.cancel();
        self.join().await
    }

    /// Waits until the relay has stopped, as it does after [`stop`](Self::stop) or when it cannot start.
    ///
    /// # Errors
    /// [`RelayError`] when it never started, or ended by a fault of its own.
    ///
    /// # Cancel safety
    /// The relay goes on; what it would have reported is gone.
    pub async fn join(self) -> Result<Report, RelayError> {
        self.task.await?
    }
}
