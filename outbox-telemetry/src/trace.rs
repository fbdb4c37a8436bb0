//! One trace from the request that published an event to everything that follows from it.
//!
//! Works with `tracing` and `tracing-opentelemetry` as the application has set them up, and does nothing without them.

use opentelemetry::Context;
use opentelemetry::baggage::BaggageExt;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::TraceContextExt;
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use outbox_core::{Envelope, Headers, header};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// More baggage than this is left behind: an event's headers are limited, and publishing must not fail over it.
const BAGGAGE_BYTES_MAX: usize = 4096;

struct Read<'a>(&'a Headers);

impl Extractor for Read<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

/// Adds headers, and leaves those alone that are there.
struct Write<'a>(&'a mut Headers);

impl Injector for Write<'_> {
    fn set(&mut self, key: &str, value: String) {
        if value.is_empty() || key == header::BAGGAGE && value.len() > BAGGAGE_BYTES_MAX {
            return;
        }
        self.0.entry(key.to_owned()).or_insert(value);
    }
}

/// Writes the current trace context and baggage into the headers of an event about to be published:
/// `PgPublisher::stamped(stamp)`.
///
/// An event that carries a trace context already keeps it.
pub fn stamp(headers: &mut Headers) {
    if headers.contains_key(header::TRACEPARENT) {
        return;
    }
    let of_span = Span::current().context();
    let context = if of_span.span().span_context().is_valid() {
        of_span
    } else {
        Context::current()
    };
    TraceContextPropagator::new().inject_context(&context, &mut Write(headers));
    // tracing's context has the baggage that came with a remote parent; what the code set is in the current one.
    let baggage = if context.baggage().is_empty() {
        Context::current()
    } else {
        context
    };
    BaggagePropagator::new().inject_context(&baggage, &mut Write(headers));
}

/// Makes the span of a delivery the child of the span that published the event, and gives it its baggage:
/// `Relay::builder(…).link_span(link_to_publisher)`.
///
/// Headers that cannot be read are as good as none.
pub fn link_to_publisher(span: &Span, envelope: &Envelope) {
    // From nothing: whatever happens to be current where the relay runs is not the parent.
    let context =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &Read(&envelope.headers));
    if !context.span().span_context().is_valid() {
        return;
    }
    let context = BaggagePropagator::new().extract_with_context(&context, &Read(&envelope.headers));
    // Refused only when the span has begun already or nobody records it.
    let _ = span.set_parent(context);
}
