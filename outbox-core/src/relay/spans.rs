//! The span around a delivery.

use std::pin::Pin;
use std::sync::Arc;

use tracing::{Instrument, Span, field};

use super::error_text::error_text;
use crate::telemetry::OutcomeLabel;
use crate::{Delivered, Delivery, Envelope, Failure, FailureKind};

/// The most characters of an error in a span.
const ERROR_CHARS_MAX: usize = 500;

type Dispatched = Result<Delivered, Failure>;
type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Called with each new span, to make it the child of the publishing request.
pub(super) type LinkSpan = Arc<dyn Fn(&Span, &Envelope) + Send + Sync>;

/// Makes the span of a delivery. Costs a look at one flag while nobody listens.
#[derive(Clone)]
pub(super) struct Spans {
    pub(super) prefix: Arc<str>,
    pub(super) link: Option<LinkSpan>,
}

impl Spans {
    pub(super) fn instrument<'a>(
        &self,
        future: BoxFuture<'a, Dispatched>,
        delivery: &Delivery,
    ) -> BoxFuture<'a, Dispatched> {
        if !tracing::enabled!(tracing::Level::INFO) {
            return future;
        }
        let envelope = &*delivery.envelope;
        let span = tracing::info_span!(
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
            return future;
        }
        if let Some(link) = &self.link {
            link(&span, envelope);
        }
        let recorded = async move {
            let dispatched = future.await;
            record(&Span::current(), &dispatched);
            dispatched
        };
        Box::pin(recorded.instrument(span))
    }
}

fn record(span: &Span, dispatched: &Dispatched) {
    let outcome = match dispatched {
        Ok(Delivered::Unhandled) => OutcomeLabel::Unhandled,
        Ok(_) => OutcomeLabel::Completed,
        Err(failure) => match failure.kind {
            FailureKind::Retry => OutcomeLabel::Retry,
            FailureKind::Reject => OutcomeLabel::Failed,
            FailureKind::Outage | FailureKind::NotTried => OutcomeLabel::Released,
        },
    };
    span.record("outcome", outcome.as_str());
    if let Err(failure) = dispatched {
        span.record("otel.status_code", "ERROR");
        span.record("exception.message", error_text(&*failure.error, ERROR_CHARS_MAX));
    }
}
