//! The span around a delivery.

use std::pin::Pin;
use std::sync::Arc;

use tracing::{Instrument, Span};

use crate::{Delivery, Envelope};

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
    pub(super) fn instrument<'a, T: Send + 'a>(
        &self,
        future: BoxFuture<'a, T>,
        delivery: &Delivery,
    ) -> BoxFuture<'a, T> {
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
        );
        if span.is_disabled() {
            return future;
        }
        if let Some(link) = &self.link {
            link(&span, envelope);
        }
        Box::pin(future.instrument(span))
    }
}
