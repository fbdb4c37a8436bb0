//! Metrics as Prometheus text.

use std::sync::Arc;

use opentelemetry::metrics::MeterProvider;
use opentelemetry_prometheus_text_exporter::PrometheusExporter;
use opentelemetry_sdk::metrics::SdkMeterProvider;

use crate::OtelMetrics;

/// The relay's metrics as Prometheus text, without any other set-up. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PrometheusText {
    exporter: PrometheusExporter,
    provider: SdkMeterProvider,
}

impl Default for PrometheusText {
    fn default() -> Self {
        Self::new()
    }
}

impl PrometheusText {
    /// A provider of meters of its own. Names stay as they are: they end in their units already.
    #[must_use]
    pub fn new() -> Self {
        let exporter = PrometheusExporter::builder()
            .without_units()
            .without_counter_suffixes()
            .without_target_info()
            .without_scope_info()
            .build();
        let provider = SdkMeterProvider::builder().with_reader(exporter.clone()).build();
        Self { exporter, provider }
    }

    /// Instruments whose figures [`render`](Self::render) shows.
    #[must_use]
    pub fn metrics(&self) -> Arc<OtelMetrics> {
        Arc::new(OtelMetrics::new(&self.provider.meter("outbox")))
    }

    /// All figures in the text format of Prometheus.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        match self.exporter.export(&mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("# {error}\n"),
        }
    }
}
