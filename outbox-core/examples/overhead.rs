//! Run with `cargo run --release -p outbox-core --example overhead`.
//!
//! Measures the relay's own cost per event: events in memory, deliveries that do nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outbox_core::memory::MemorySource;
use outbox_core::{Delivered, Delivery, Dispatcher, Envelope, EventId, EventType, Failure, Payload, Relay};

struct Nothing;

#[async_trait::async_trait]
impl Dispatcher for Nothing {
    async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
        Ok(Delivered::Handled)
    }
}

const EVENTS: usize = 300_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    for round in 0..5 {
        let source = Arc::new(MemorySource::new());
        let event_type = EventType::new("Nothing")?;
        for _ in 0..EVENTS {
            let payload = Payload::from_json("{}");
            source.publish_envelope(Envelope::new(
                EventId::new(),
                event_type.clone(),
                payload,
                Timestamp::now(),
            ));
        }

        let start = Instant::now();
        let relay = Relay::builder(source.clone(), Arc::new(Nothing)).build()?.spawn();
        while source.counts().completed < EVENTS {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = start.elapsed();
        relay.shutdown().await?;

        let per_event = took.as_nanos() / EVENTS as u128;
        println!("round {round}: {per_event} ns per event, source included");
    }
    Ok(())
}
