//! What a relay does, for those who watch it: metrics, traces, health.
//!
//! The names of metrics and spans are listed in `docs/telemetry.md`, and are API.

#[cfg(feature = "http")]
mod health;
#[cfg(feature = "otel")]
mod labels;
#[cfg(feature = "otel")]
mod metrics;
#[cfg(feature = "prometheus")]
mod prometheus;
#[cfg(feature = "otel")]
mod trace;

#[cfg(feature = "http")]
pub use health::{health_router, metrics_router};
#[cfg(feature = "otel")]
pub use metrics::{Backlog, LABELS_MAX, OtelMetrics, Sampler};
#[cfg(feature = "prometheus")]
pub use prometheus::PrometheusText;
#[cfg(feature = "otel")]
pub use trace::{TraceLinks, stamp};
