//! Probes over HTTP.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use async_trait::async_trait;
use outbox_core::memory::MemorySource;
use outbox_core::{Delivered, Delivery, Dispatcher, Failure, Relay};
use outbox_telemetry::{PrometheusText, health_router, metrics_router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

struct Nothing;

#[async_trait]
impl Dispatcher for Nothing {
    async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
        Ok(Delivered::Handled)
    }
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn readiness_follows_the_relay_and_metrics_are_served() {
    let text = PrometheusText::new();
    let relay = Relay::builder(Arc::new(MemorySource::new()), Arc::new(Nothing))
        .metrics(text.metrics())
        .build()
        .unwrap();
    let health = relay.health();
    let page = text.clone();
    let router = health_router(Arc::clone(&health), 3).merge(metrics_router(move || page.render()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });

    // Built, but not running yet.
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
    let relay = relay.spawn();
    while !health.is_healthy(3) {
        tokio::task::yield_now().await;
    }
    let ready = get(address, "/readyz").await;
    let live = get(address, "/healthz").await;
    let metrics = get(address, "/metrics").await;
    relay.shutdown().await.unwrap();

    assert!(
        ready.starts_with("HTTP/1.1 200") && ready.contains("\"listener\":"),
        "{ready}"
    );
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");
    assert!(
        metrics.contains("text/plain; version=0.0.4") && metrics.contains("dispatcher_batch_size"),
        "{metrics}"
    );
    for path in ["/readyz", "/healthz"] {
        assert!(
            get(address, path).await.starts_with("HTTP/1.1 503"),
            "{path} after the end"
        );
    }
}
