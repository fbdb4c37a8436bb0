//! The span around a try at delivering an event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;

use tracing::{Instrument, Span, field};

use super::error_text::drop_quietly;
use super::outcome::{PANICKED, TryResult};
use crate::Delivery;
use crate::telemetry::{OutcomeLabel, SpanLinks};

/// The most characters of an error in a span.
const ERROR_CHARS_MAX: usize = 500;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Makes the spans of deliveries. Costs a look at one flag while nobody listens.
#[derive(Clone)]
pub(super) struct Spans {
    pub(super) prefix: Arc<str>,
    pub(super) links: Option<Arc<dyn SpanLinks>>,
}

impl Spans {
    /// Gives a delivery its span. An event of a run that is taken apart has one already.
    pub(super) fn open(&self, delivery: &mut Delivery) {
        quietly(|| self.open_span(delivery));
    }

    fn open_span(&self, delivery: &mut Delivery) {
        if !tracing::enabled!(tracing::Level::INFO) || !delivery.span.is_disabled() {
            return;
        }
        let envelope = &*delivery.envelope;
        let span = tracing::info_span!(
            parent: None,
            "outbox.consume",
            otel.name = format!("{}{}", self.prefix, envelope.event_type),
            otel.kind = "consumer",
            event.id = %envelope.id,
            event.event_type = %envelope.event_type,
            attempt = delivery.attempt,
            outcome = field::Empty,
            otel.status_code = field::Empty,
            exception.message = field::Empty,
        );
        if span.is_disabled() {
            return;
        }
        if let Some(links) = &self.links {
            links.begin(&span, delivery);
        }
        delivery.span = span;
    }

    /// Records how the try ended, as it is told to the source, and ends its span.
    pub(super) fn close(&self, delivery: &mut Delivery, outcome: OutcomeLabel, error: Option<String>) {
        quietly(|| self.close_span(delivery, outcome, error));
    }

    fn close_span(&self, delivery: &mut Delivery, outcome: OutcomeLabel, error: Option<String>) {
        let span = std::mem::replace(&mut delivery.span, Span::none());
        if span.is_disabled() {
            return;
        }
        span.record("outcome", outcome.as_str());
        if let Some(error) = error {
            span.record("otel.status_code", "ERROR");
            span.record("exception.message", error);
        }
        if outcome == OutcomeLabel::Retry
            && let Some(links) = &self.links
        {
            links.retry(&span, delivery);
        }
    }
}

/// Subscribers and links are foreign code. One that panics must not end the worker, and strand its events.
fn quietly(call: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(call)) {
        drop_quietly(payload);
    }
}

/// Runs a call within a span, if that one is recorded.
pub(super) fn within<'a, T: 'a>(span: &Span, call: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
    if span.is_disabled() {
        call
    } else {
        Box::pin(call.instrument(span.clone()))
    }
}

/// What a recorded span says of a try that failed.
pub(super) fn error(span: &Span, result: &TryResult) -> Option<String> {
    if span.is_disabled() {
        return None;
    }
    let text = match result {
        TryResult::Delivered(_) | TryResult::CalledOff { .. } => return None,
        TryResult::Failed(failed) => failed.error.clone(),
        TryResult::TimedOut { limit, .. } => format!("timed out after {} s", limit.as_secs_f64()),
        TryResult::Panicked { message } => format!("{PANICKED}{message}"),
    };
    Some(text.chars().take(ERROR_CHARS_MAX).collect())
}
