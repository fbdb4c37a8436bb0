//! One trace from the request that published an event to everything that follows from it.
//!
//! Works with `tracing` and `tracing-opentelemetry` as the application has set them up, and does nothing without them.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashlink::LruCache;
use opentelemetry::Context;
use opentelemetry::baggage::BaggageExt;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use outbox_core::telemetry::SpanLinks;
use outbox_core::{Delivery, EventId, HEADER_BYTES_MAX, Headers, TenantId, header};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// More baggage than this is left behind, however much room there is.
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

/// Adds headers, and leaves those alone that are there. What an event has no room for is left behind: a request may bring
/// more of it than fits, and publishing must not fail over that.
struct Write<'a>(&'a mut Headers);

impl Injector for Write<'_> {
    fn set(&mut self, key: &str, value: String) {
        if value.is_empty() || key == header::BAGGAGE && value.len() > BAGGAGE_BYTES_MAX {
            return;
        }
        let taken: usize = self.0.iter().map(|(name, value)| name.len() + value.len()).sum();
        if taken + key.len() + value.len() <= HEADER_BYTES_MAX {
            self.0.entry(key.to_owned()).or_insert(value);
        }
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

/// So many failed tries are remembered; past it, the oldest are forgotten.
const REMEMBERED_MAX: usize = 10_000;

/// Makes the span of each try the child of the span that published the event, gives it its baggage, and links the span
/// of a retry to that of the try before it: `Relay::builder(…).span_links(TraceLinks::default())`.
///
/// Headers that cannot be read are as good as none. The try before is known while it was this value that saw it: a retry
/// in another process is a child of the publisher's span like all others, without the link.
pub struct TraceLinks {
    failed: Mutex<LruCache<(TenantId, EventId), SpanContext>>,
}

impl Default for TraceLinks {
    fn default() -> Self {
        Self {
            failed: Mutex::new(LruCache::new(REMEMBERED_MAX)),
        }
    }
}

impl fmt::Debug for TraceLinks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceLinks").finish_non_exhaustive()
    }
}

impl TraceLinks {
    fn failed(&self) -> MutexGuard<'_, LruCache<(TenantId, EventId), SpanContext>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpanLinks for TraceLinks {
    fn begin(&self, span: &Span, delivery: &Delivery) {
        let headers = Read(&delivery.envelope.headers);
        // From nothing: whatever happens to be current where the relay runs is not the parent.
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        if context.span().span_context().is_valid() {
            let context = BaggagePropagator::new().extract_with_context(&context, &headers);
            // Refused only when the span has begun already or nobody records it.
            let _ = span.set_parent(context);
        }
        if delivery.attempt > 1
            && let Some(before) = self.failed().remove(&key(delivery))
        {
            span.add_link(before);
        }
    }

    fn retry(&self, span: &Span, delivery: &Delivery) {
        let context = span.context().span().span_context().clone();
        if context.is_valid() {
            self.failed().insert(key(delivery), context);
        }
    }
}

/// An id alone may be another tenant's too.
fn key(delivery: &Delivery) -> (TenantId, EventId) {
    (delivery.envelope.tenant_id.clone(), delivery.envelope.id)
}
