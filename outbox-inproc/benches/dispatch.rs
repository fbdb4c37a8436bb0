//! What dispatching costs beside the handlers themselves, in nanoseconds per event and handler.
//!
//! Run with `cargo bench -p outbox-inproc`. Decoding the payload is measured on its own, and is part of the other
//! numbers: subtract it to see the overhead.

#![expect(clippy::unwrap_used, reason = "a measurement that cannot go on has to panic")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use outbox_core::{
    Context, Delivery, Dispatcher, Envelope, Event, EventId, EventType, HandlerError, Payload,
};
use outbox_inproc::{InProcDispatcher, Registry};

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: u64,
    customer: String,
}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

const BATCHES: u32 = 200;
const ROUNDS: u32 = 1_000;

fn dispatcher(handlers: usize) -> InProcDispatcher {
    let registry = (0..handlers).fold(Registry::new(), |registry, n| {
        registry.on::<OrderPlaced>(
            format!("handler-{n}"),
            |event: OrderPlaced, _: Context| async move {
                black_box((event.order, event.customer.len()));
                Ok::<(), HandlerError>(())
            },
        )
    });
    registry.build().unwrap()
}

fn delivery() -> Delivery {
    let envelope = Envelope::new(
        EventId::new(),
        EventType::new(OrderPlaced::EVENT_TYPE).unwrap(),
        Payload::from_json(r#"{"order": 7, "customer": "ada"}"#),
        Timestamp::UNIX_EPOCH,
    );
    Delivery::new(
        Arc::new(envelope),
        tokio::time::Instant::now() + Duration::from_secs(3600),
    )
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let delivery = delivery();
    let mut best = Best::new();
    for _ in 0..BATCHES {
        let started = Instant::now();
        for _ in 0..ROUNDS {
            black_box(delivery.envelope.payload.decode::<OrderPlaced>().unwrap());
        }
        best.take(started);
    }
    println!("decoding alone       {:>6} ns", best.per_round(1));

    for handlers in [1, 2, 10] {
        let dispatcher = dispatcher(handlers);
        let mut best = Best::new();
        for _ in 0..BATCHES {
            let started = Instant::now();
            for _ in 0..ROUNDS {
                dispatcher.dispatch(&delivery).await.unwrap();
            }
            best.take(started);
        }
        println!(
            "{handlers:>2} handlers, each    {:>6} ns",
            best.per_round(handlers)
        );
    }
}

/// The fastest batch: what else the machine does only ever adds.
struct Best(Duration);

impl Best {
    fn new() -> Self {
        Self(Duration::MAX)
    }

    fn take(&mut self, started: Instant) {
        self.0 = self.0.min(started.elapsed());
    }

    fn per_round(&self, handlers: usize) -> u128 {
        self.0.as_nanos() / u128::from(ROUNDS) / handlers as u128
    }
}
