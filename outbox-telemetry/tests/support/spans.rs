//! Spans that can be read.

use opentelemetry::trace::{SpanId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_subscriber::layer::SubscriberExt;

/// What one process has: an exporter, and the subscriber of this thread for as long as the guard lives.
pub(crate) struct Process {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _guard: tracing::subscriber::DefaultGuard,
}

pub(crate) fn process() -> Process {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    Process {
        exporter,
        provider,
        _guard: guard,
    }
}

impl Process {
    pub(crate) fn end(self) -> Vec<SpanData> {
        drop(self._guard);
        self.provider.force_flush().unwrap();
        self.exporter.get_finished_spans().unwrap()
    }
}

pub(crate) fn find<'a>(spans: &'a [SpanData], name: &str) -> Vec<&'a SpanData> {
    spans.iter().filter(|span| span.name == name).collect()
}

pub(crate) fn attribute(span: &SpanData, key: &str) -> String {
    let found = span.attributes.iter().find(|pair| pair.key.as_str() == key);
    found.map(|pair| pair.value.to_string()).unwrap_or_default()
}

pub(crate) fn linked(span: &SpanData) -> Vec<SpanId> {
    span.links
        .iter()
        .map(|link| link.span_context.span_id())
        .collect()
}
