//! One trace from a request to all that follows from it, sent by OTLP to where `OTEL_EXPORTER_OTLP_ENDPOINT` says.

use axum::{extract::Request, middleware::Next, response::Response};
use opentelemetry::{propagation::TextMapPropagator, trace::TracerProvider};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{ExporterBuildError, SpanExporter};
use opentelemetry_sdk::{
    propagation::{BaggagePropagator, TraceContextPropagator},
    trace::SdkTracerProvider,
};
use tracing::Instrument;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

/// Where spans go, if anywhere.
pub(crate) struct Traces(Option<SdkTracerProvider>);

/// Sets up what applications set up; nothing of it is the outbox's.
pub(crate) fn start() -> Result<Traces, ExporterBuildError> {
    if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_none() {
        return Ok(Traces(None));
    }
    let exporter = SpanExporter::builder().with_tonic().build()?;
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("shop"));
    tracing_subscriber::registry()
        .with(layer)
        .with(LevelFilter::INFO)
        .init();
    Ok(Traces(Some(provider)))
}

impl Traces {
    /// Sends what has gathered.
    pub(crate) async fn end(self) {
        let Some(provider) = self.0 else { return };
        // It blocks its thread.
        let ended = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        if !matches!(ended, Ok(Ok(()))) {
            eprintln!("the last spans were lost: {ended:?}");
        }
    }
}

/// A span around each request, the child of the span that its `traceparent` names.
pub(crate) async fn request(request: Request, next: Next) -> Response {
    let name = format!("{} {}", request.method(), request.uri().path());
    let span = tracing::info_span!("request", otel.name = name, otel.kind = "server");
    let headers = HeaderExtractor(request.headers());
    let context = TraceContextPropagator::new().extract(&headers);
    let context = BaggagePropagator::new().extract_with_context(&context, &headers);
    // Refused only while nobody records it.
    let _ = span.set_parent(context);
    next.run(request).instrument(span).await
}
