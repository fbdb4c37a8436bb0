//! Calls of the source, each in a task of its own, so that the loop never drops one half-way nor waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use crate::{ClaimRequest, ClaimToken, Claimed, Position, Settled, Settlement, Source, SourceError};

/// A call under way. Dropped, it is given up.
#[derive(Debug)]
pub(super) struct Job<T>(AbortOnDropHandle<Result<T, SourceError>>);

/// Makes the calls. Each has a time limit: a store that hangs must not hang the relay.
#[derive(Clone)]
pub(super) struct Jobs {
    pub(super) source: Arc<dyn Source>,
    pub(super) limit: Duration,
}

impl Jobs {
    pub(super) fn claim(&self, request: ClaimRequest) -> Job<Vec<Claimed>> {
        let source = Arc::clone(&self.source);
        self.start("claim", async move { source.claim(request).await })
    }

    pub(super) fn settle(&self, settlements: Vec<Settlement>) -> Job<Settled> {
        let source = Arc::clone(&self.source);
        self.start("settle", async move { source.settle(settlements).await })
    }

    pub(super) fn extend(&self, tokens: Vec<ClaimToken>, lease: Duration) -> Job<Vec<ClaimToken>> {
        let source = Arc::clone(&self.source);
        self.start("extend", async move { source.extend(&tokens, lease).await })
    }

    pub(super) fn paused(&self, tokens: Vec<ClaimToken>) -> Job<Vec<(ClaimToken, Position)>> {
        let source = Arc::clone(&self.source);
        self.start("paused", async move { source.paused(&tokens).await })
    }

    fn start<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, SourceError>> + Send + 'static,
    ) -> Job<T> {
        let limit = self.limit;
        let bounded = async move {
            match tokio::time::timeout(limit, call).await {
                Ok(answer) => answer,
                Err(_) => {
                    let cause = format!("no answer within {} s", limit.as_secs_f64());
                    Err(SourceError::unavailable(operation, cause))
                }
            }
        };
        Job(AbortOnDropHandle::new(tokio::spawn(bounded)))
    }
}

/// The answer to a call, if one is under way; else never. The call is forgotten once it has answered.
///
/// # Cancel safety
/// The call goes on, and can be asked again.
pub(super) async fn answer<T>(job: &mut Option<Job<T>>, operation: &'static str) -> Result<T, SourceError> {
    let Some(Job(task)) = job else {
        return std::future::pending().await;
    };
    let answer = match task.await {
        Ok(answer) => answer,
        Err(error) => Err(SourceError::unavailable(operation, error)),
    };
    *job = None;
    answer
}
