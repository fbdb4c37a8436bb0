//! One handler's try at one event.
//!
//! # Time
//! The handler's time is up at its own timeout or at the delivery's deadline, whichever is first. Its token fires, and it
//! has [`WIND_DOWN`] left to return. The same when the delivery is called off.

use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use outbox_core::telemetry::{Metrics, OutcomeLabel};
use outbox_core::{Context, Delivery, FailureKind, HandlerError, PartName, State};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field};

use crate::erased::ErasedHandler;
use crate::guard::{GuardedFuture, catch, error_text};
use crate::merge::{Attempts, Usual};
use crate::outcome::{PartEnd, PartFailure};

/// How long a handler whose token has fired may go on before it is dropped.
///
/// Short, for the relay is waiting; long enough to return what is already at hand.
pub const WIND_DOWN: Duration = Duration::from_millis(100);

/// The most characters of an error in a span.
const ERROR_CHARS_MAX: usize = 500;

/// A registered handler, ready to run.
pub(crate) struct Part {
    pub(crate) name: PartName,
    pub(crate) timeout: Option<Duration>,
    pub(crate) attempts: Attempts,
    pub(crate) handler: Box<dyn ErasedHandler>,
}

/// What all handlers of a dispatcher share.
pub(crate) struct Surroundings {
    pub(crate) state: Arc<State>,
    /// What the relay gives handlers that ask for nothing else.
    pub(crate) usual: OnceLock<Usual>,
    /// The relay's, if it measures.
    pub(crate) metrics: OnceLock<Arc<dyn Metrics>>,
}

impl Surroundings {
    pub(crate) fn usual(&self) -> Usual {
        self.usual.get().copied().unwrap_or_default()
    }
}

/// Why a handler is no longer waited for.
enum Ending {
    /// Its time is up; this is what it had.
    TimeUp(Duration),
    /// The claim was lost, or the relay stops.
    CalledOff,
}

impl Ending {
    /// Why a handler that is told to end now is told so.
    fn now(started: Instant, deadline: Instant) -> Self {
        if Instant::now() >= deadline {
            Self::TimeUp(deadline.duration_since(started))
        } else {
            Self::CalledOff
        }
    }
}

/// Runs a handler once, to whatever end. Never panics, and ends in time if the handler yields.
///
/// # Cancel safety
/// Dropping it drops the handler's future.
pub(crate) async fn run(part: &Part, delivery: &Delivery, surroundings: &Surroundings) -> PartEnd {
    let started = Instant::now();
    let span = span(part, delivery);
    let attempt = attempt(part, delivery, &surroundings.state, started).instrument(span.clone());
    let end = match attempt.await {
        Ok(()) => PartEnd::Done,
        Err(failure) => {
            let attempts = part.attempts.fewer(surroundings.usual().attempts);
            PartEnd::Failed(limited(failure, attempts, delivery.attempt))
        }
    };
    span.record("outcome", label(&end).as_str());
    if let PartEnd::Failed(failure) = &end {
        let text: String = failure.text.chars().take(ERROR_CHARS_MAX).collect();
        span.record("otel.status_code", "ERROR");
        span.record("exception.message", text);
    }
    if let Some(metrics) = surroundings.metrics.get() {
        let event_type = &delivery.envelope.event_type;
        metrics.handled(event_type, &part.name, label(&end), started.elapsed());
    }
    end
}

/// A child of the delivery's span. Costs a look at one flag while nobody listens.
fn span(part: &Part, delivery: &Delivery) -> Span {
    if !tracing::enabled!(tracing::Level::INFO) {
        return Span::none();
    }
    // A run of events is dispatched within no span, and a dispatcher that is called by hand within the caller's.
    let parent = delivery.span.id().or_else(|| Span::current().id());
    tracing::info_span!(
        parent: parent,
        "outbox.handle",
        otel.name = part.name.as_str(),
        handler = part.name.as_str(),
        event.id = %delivery.envelope.id,
        attempt = delivery.attempt,
        outcome = field::Empty,
        otel.status_code = field::Empty,
        exception.message = field::Empty,
    )
}

fn label(end: &PartEnd) -> OutcomeLabel {
    match end {
        PartEnd::Done => OutcomeLabel::Completed,
        PartEnd::Failed(failure) => match failure.kind {
            FailureKind::Retry => OutcomeLabel::Retry,
            FailureKind::Reject => OutcomeLabel::Failed,
            FailureKind::Outage | FailureKind::NotTried => OutcomeLabel::Released,
        },
    }
}

async fn attempt(
    part: &Part,
    delivery: &Delivery,
    state: &Arc<State>,
    started: Instant,
) -> Result<(), PartFailure> {
    let (deadline, token) = (
        deadline_of(part, delivery, started),
        delivery.cancelled.child_token(),
    );
    let mut own = delivery.clone();
    own.deadline = deadline;
    // A token of its own: a handler that fires it, as a drop guard does, calls off nobody else.
    own.cancelled = token.clone();
    let ctx = Context::new(Arc::new(own), Arc::clone(state)).with_part(part.name.clone());
    let mut future = match catch(move || part.handler.start(ctx)) {
        Ok(Ok(future)) => GuardedFuture::new(future),
        Ok(Err(text)) => return Err(PartFailure::new(FailureKind::Reject, text)),
        Err(panic) => return Err(panicked(&panic)),
    };
    let returned = |end| {
        returned(end).map_err(|failure| {
            // A handler sees the call to end no later than we do.
            if delivery.cancelled.is_cancelled() {
                ended_by(&Ending::now(started, deadline), failure)
            } else {
                failure
            }
        })
    };

    // Most handlers of a busy relay end without waiting: they cost no timer.
    if let Poll::Ready(end) = poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await {
        return returned(end);
    }
    tokio::select! {
        // ORDER: the handler first. Its result counts even at the deadline.
        biased;
        end = &mut future => return returned(end),
        () = sleep_until(deadline) => {}
        () = delivery.cancelled.cancelled() => {}
    }
    wind_down(future, &token, &Ending::now(started, deadline)).await
}

/// When the handler's time is up.
fn deadline_of(part: &Part, delivery: &Delivery, started: Instant) -> Instant {
    let own = part.timeout.and_then(|timeout| started.checked_add(timeout));
    own.map_or(delivery.deadline, |own| own.min(delivery.deadline))
}

/// Lets the handler know that it has to end, and takes its result if it does.
async fn wind_down(
    mut future: GuardedFuture<'_>,
    token: &CancellationToken,
    ending: &Ending,
) -> Result<(), PartFailure> {
    token.cancel();
    if let Ok(end) = timeout(WIND_DOWN, &mut future).await {
        return returned(end).map_err(|failure| ended_by(ending, failure));
    }
    let failure = match ending {
        Ending::TimeUp(_) => PartFailure::new(FailureKind::Retry, String::new()),
        Ending::CalledOff => PartFailure::new(FailureKind::NotTried, String::new()),
    };
    let mut failure = ended_by(ending, failure);
    if let Err(panic) = future.abandon() {
        failure.text.push_str(&format!("; panicked in drop: {panic}"));
    }
    Err(failure)
}

/// Puts the reason for the end before what the handler said of it.
fn ended_by(ending: &Ending, mut failure: PartFailure) -> PartFailure {
    let reason = match ending {
        Ending::TimeUp(limit) => format!("timed out after {:?}", to_millis(*limit)),
        Ending::CalledOff => {
            // An error after the call to end is how a handler obeys it: nothing to charge.
            if failure.kind == FailureKind::Retry {
                failure.kind = FailureKind::NotTried;
            }
            "called off before it had ended".to_owned()
        }
    };
    failure.text = match failure.text.as_str() {
        "" => reason,
        text => format!("{reason}: {text}"),
    };
    failure
}

/// The nearest millisecond: the rest of a deadline that was set a moment earlier is no news.
fn to_millis(limit: Duration) -> Duration {
    let millis = limit.saturating_add(Duration::from_micros(500)).as_millis();
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

fn returned(end: Result<Result<(), HandlerError>, String>) -> Result<(), PartFailure> {
    let error = match end {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error,
        Err(panic) => return Err(panicked(&panic)),
    };
    let (kind, error, retry_after) = match error {
        HandlerError::Retry(error) => (FailureKind::Retry, error, None),
        HandlerError::RetryAfter(wait, error) => (FailureKind::Retry, error, Some(wait)),
        HandlerError::Reject(error) => (FailureKind::Reject, error, None),
        HandlerError::Outage(error) => (FailureKind::Outage, error, None),
    };
    Err(PartFailure {
        kind,
        text: error_text(error),
        retry_after,
    })
}

fn panicked(panic: &str) -> PartFailure {
    PartFailure::new(FailureKind::Retry, format!("panicked: {panic}"))
}

/// Turns a wish for another try into a refusal once the handler's own attempts are used up.
fn limited(mut failure: PartFailure, attempts: Option<NonZeroU32>, attempt: u32) -> PartFailure {
    let spent = attempts.is_some_and(|attempts| attempt >= attempts.get());
    if spent && failure.kind == FailureKind::Retry {
        failure.kind = FailureKind::Reject;
        failure.text = format!("gave up after {attempt} attempts: {}", failure.text);
    }
    failure
}
