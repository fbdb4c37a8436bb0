//! What delivers an event.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::telemetry::Metrics;
use crate::{BoxError, ConfigError, Envelope, EventType, PartName, Policy, RetryPolicy};

/// One try at delivering one event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Delivery {
    /// The event.
    pub envelope: Arc<Envelope>,
    /// Which try this is, from 1.
    pub attempt: u32,
    /// The parts that earlier tries have done; they are not run again.
    pub done: Arc<[PartName]>,
    /// When the try is given up.
    pub deadline: Instant,
    /// Fires when the try should end: deadline passed, claim lost, or the relay stops.
    pub cancelled: CancellationToken,
    /// The span of the try; none while nobody listens.
    pub span: Span,
}

impl Delivery {
    /// A first try with nothing done.
    #[must_use]
    pub fn new(envelope: Arc<Envelope>, deadline: Instant) -> Self {
        Self {
            envelope,
            attempt: 1,
            done: Arc::from([]),
            deadline,
            cancelled: CancellationToken::new(),
            span: Span::none(),
        }
    }
}

/// A delivery that succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivered {
    /// At least one part took the event.
    Handled,
    /// Nobody listens for this event type. Completed all the same, but counted apart.
    Unhandled,
}

/// Whose fault a failed delivery is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// This event's, and another try may help. Costs an attempt.
    Retry,
    /// This event's, and no try will help. It becomes a dead letter.
    Reject,
    /// The transport's or a dependency's: nothing is charged to the event.
    Outage,
    /// The delivery was not begun, or was called off before it could have an effect. Nothing is charged.
    NotTried,
}

/// A delivery that failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// Whose fault it is.
    pub kind: FailureKind,
    /// What went wrong.
    pub error: BoxError,
    /// All parts done so far, those of earlier tries included.
    pub done: Vec<PartName>,
    /// The wait that was asked for, instead of the usual one.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// A failure of the given kind with no part done.
    #[must_use]
    pub fn new(kind: FailureKind, error: impl Into<BoxError>) -> Self {
        Self {
            kind,
            error: error.into(),
            done: Vec::new(),
            retry_after: None,
        }
    }

    /// Sets the parts done so far.
    #[must_use]
    pub fn with_done(mut self, done: Vec<PartName>) -> Self {
        self.done = done;
        self
    }

    /// Sets the wait that a handler asked for.
    #[must_use]
    pub fn with_retry_after(mut self, retry_after: Option<Duration>) -> Self {
        self.retry_after = retry_after;
        self
    }
}

/// How far a run came: the outcomes of its first deliveries, in order.
///
/// Ends with the first failure; what comes after it was not tried.
pub type RunResult = Vec<Result<Delivered, Failure>>;

/// Delivers events: to handlers in the process, to a topic, to wherever.
///
/// # Contract
/// 1. `Ok` means that every part took the event for good; the relay completes it on that word.
/// 2. A failure names every part that is done, so that only the rest runs again.
/// 3. A panic of a part is a failure of that part.
/// 4. `dispatch_run` starts no delivery before the one before it has succeeded, or holds the same order by other
///    means, and returns no more results than deliveries; none follows a failure.
#[async_trait]
pub trait Dispatcher: Send + Sync + 'static {
    /// Delivers one event. Called within the delivery's span.
    ///
    /// # Errors
    /// [`Failure`] says whose fault it was and what is done.
    ///
    /// # Cancel safety
    /// The relay drops the future only when a deadline was ignored; the event is then tried again.
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure>;

    /// Delivers events of one ordering key in order, stopping at the first failure.
    ///
    /// Called within no span: each delivery has its own.
    ///
    /// # Cancel safety
    /// As [`dispatch`](Self::dispatch).
    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let mut results = RunResult::with_capacity(run.len());
        for delivery in run {
            // Not the first: a relay asks for nothing that is called off already.
            let result = if !results.is_empty() && delivery.cancelled.is_cancelled() {
                let untried = Failure::new(FailureKind::NotTried, "called off before it began");
                Err(untried.with_done(delivery.done.to_vec()))
            } else {
                self.dispatch(delivery).instrument(delivery.span.clone()).await
            };
            let failed = result.is_err();
            results.push(result);
            if failed {
                break;
            }
        }
        results
    }

    /// Whether `dispatch_run` does better than one delivery after the other, as with a broker that acknowledges many
    /// records at once. If not, the relay calls `dispatch` in turn itself: each event then has its own deadline, and
    /// its outcome is recorded before the run ends. Defaults to `false`.
    fn pipelines(&self) -> bool {
        false
    }

    /// How events of a type are treated: tries, timeout, concurrency, key policy.
    fn policy(&self, event_type: &EventType) -> Policy {
        let _ = event_type;
        Policy::default()
    }

    /// Called once before the relay claims anything: the place to refuse a set-up that cannot work.
    ///
    /// # Errors
    /// [`ConfigError`] stops the relay from starting.
    fn prepare(&self, limits: &Limits) -> Result<(), ConfigError> {
        let _ = limits;
        Ok(())
    }
}

/// The relay's limits that a dispatcher has to fit into, and where it measures.
#[derive(Clone)]
#[non_exhaustive]
pub struct Limits {
    /// How long a claim is held unless extended.
    pub lease: Duration,
    /// How long one try may take, unless the event type has a policy of its own.
    pub handler_timeout: Duration,
    /// How many events may be in flight.
    pub concurrency: usize,
    /// How often an event is tried, unless its type has a policy of its own.
    pub max_attempts: NonZeroU32,
    /// Where a dispatcher's own measurements go, if anywhere.
    pub metrics: Option<Arc<dyn Metrics>>,
}

impl Limits {
    /// Puts the limits together. As many attempts as [`RetryPolicy`] has by default; measurements go nowhere.
    #[must_use]
    pub fn new(lease: Duration, handler_timeout: Duration, concurrency: usize) -> Self {
        Self {
            lease,
            handler_timeout,
            concurrency,
            max_attempts: RetryPolicy::default().max_attempts(),
            metrics: None,
        }
    }

    /// Sets how often an event is tried.
    #[must_use]
    pub fn with_max_attempts(mut self, max_attempts: NonZeroU32) -> Self {
        self.max_attempts = max_attempts;
        self
    }

    /// Sets where measurements go.
    #[must_use]
    pub fn with_metrics(mut self, metrics: Option<Arc<dyn Metrics>>) -> Self {
        self.metrics = metrics;
        self
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limits")
            .field("lease", &self.lease)
            .field("handler_timeout", &self.handler_timeout)
            .field("concurrency", &self.concurrency)
            .field("max_attempts", &self.max_attempts)
            .finish_non_exhaustive()
    }
}
