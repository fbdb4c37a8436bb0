//! Probes over HTTP. Unauthenticated and read-only: serve them where only probes can reach them.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use outbox_core::{Health, Listening};
use serde_json::{Value, json};

/// `/healthz`: 200 while the relay's loop runs. `/readyz`: 200 while it also gets answers: within `intervals` poll
/// timeouts, or is not asking because all places are taken. Both show the state as JSON; 503 otherwise.
///
/// Three intervals are a good number.
pub fn health_router(health: Arc<Health>, intervals: u32) -> Router {
    let live = Arc::clone(&health);
    Router::new()
        .route(
            "/healthz",
            get(move || {
                let alive = !live.has_ended();
                std::future::ready((code(alive), Json(state(&live, alive))))
            }),
        )
        .route(
            "/readyz",
            get(move || {
                let ready = health.is_healthy(intervals);
                std::future::ready((code(ready), Json(state(&health, ready))))
            }),
        )
}

/// `/metrics`: what `render` returns, in the text format of Prometheus.
pub fn metrics_router(render: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let page = move || std::future::ready(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], render()));
    Router::new().route("/metrics", get(page))
}

fn code(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

fn state(health: &Health, good: bool) -> Value {
    let listener = match health.listening() {
        Listening::Up => "up",
        Listening::Down => "down",
        Listening::PollOnly => "poll only",
    };
    let breakers: serde_json::Map<String, Value> = health
        .breakers()
        .into_iter()
        .map(|(event_type, breaker)| (event_type.as_str().to_owned(), breaker.as_str().into()))
        .collect();
    json!({
        "ok": good,
        "ended": health.has_ended(),
        "seconds_since_poll": health.since_last_poll().as_secs_f64(),
        "poll_errors": health.consecutive_poll_errors(),
        "settle_errors": health.consecutive_settle_errors(),
        "in_flight": health.in_flight(),
        "stuck": health.stuck(),
        "listener": listener,
        "breakers": breakers,
    })
}
