//! Run with `cargo run --release -p outbox-core --example overhead`.
//!
//! Measures the relay's own cost per event: a source that makes events up, deliveries that do nothing.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, Delivered, Delivery, Dispatcher, Envelope, EventId, EventType,
    Failure, Listening, Payload, Position, Relay, Settled, Settlement, Source, SourceError, Wakeup,
};
use tokio::sync::Notify;

const EVENTS: i64 = 1_000_000;

/// Makes events up as they are claimed, and counts them as they are settled.
struct MadeUp {
    next: AtomicI64,
    settled: AtomicUsize,
    all: Notify,
    event_type: EventType,
    id: EventId,
    created_at: Timestamp,
}

#[async_trait]
impl Source for MadeUp {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        let first = self
            .next
            .fetch_add(i64::from(request.max_events.get()), Ordering::Relaxed);
        let last = (first + i64::from(request.max_events.get())).min(EVENTS);
        let token = ClaimToken::from_parts(first, 0);
        let event = |position| {
            let payload = Payload::from_json("{}");
            let envelope = Envelope::new(self.id, self.event_type.clone(), payload, self.created_at);
            Claimed::new(token, Position(position), envelope)
        };
        Ok((first..last).map(event).collect())
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        let before = self.settled.fetch_add(settlements.len(), Ordering::Relaxed);
        if before + settlements.len() >= usize::try_from(EVENTS).unwrap_or(usize::MAX) {
            self.all.notify_one();
        }
        Ok(Settled::all())
    }

    async fn extend(&self, _: &[ClaimToken], _: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        Ok(Vec::new())
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        tokio::time::sleep(timeout).await;
        Wakeup::Timeout
    }

    fn listening(&self) -> Listening {
        Listening::PollOnly
    }
}

struct Nothing;

#[async_trait]
impl Dispatcher for Nothing {
    async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
        Ok(Delivered::Handled)
    }
}

/// Gives its thread away once, as a handler that waits for something does.
struct Waits;

#[async_trait]
impl Dispatcher for Waits {
    async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
        tokio::task::yield_now().await;
        Ok(Delivered::Handled)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure("making and counting alone", None).await?;
    for round in 1..=3 {
        measure(
            &format!("round {round}, deliveries that do nothing"),
            Some(Arc::new(Nothing)),
        )
        .await?;
        measure(
            &format!("round {round}, deliveries that wait once"),
            Some(Arc::new(Waits)),
        )
        .await?;
    }
    Ok(())
}

async fn measure(
    what: &str,
    dispatcher: Option<Arc<dyn Dispatcher>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let source = Arc::new(MadeUp {
        next: AtomicI64::new(0),
        settled: AtomicUsize::new(0),
        all: Notify::new(),
        event_type: EventType::new("Nothing")?,
        id: EventId::new(),
        created_at: Timestamp::now(),
    });
    let cpu_before = cpu_seconds();
    let start = Instant::now();
    match dispatcher {
        Some(dispatcher) => {
            let relay = Relay::builder(source.clone(), dispatcher).build()?.spawn();
            source.all.notified().await;
            relay.shutdown().await?;
        }
        None => alone(&source).await?,
    }
    let per_event = |seconds: f64| seconds * 1e9 / EVENTS as f64;
    let (took, cpu) = (start.elapsed().as_secs_f64(), cpu_seconds() - cpu_before);
    println!(
        "{what}: {:.0} ns per event, {:.0} ns of CPU",
        per_event(took),
        per_event(cpu)
    );
    Ok(())
}

/// What the made-up source costs without a relay.
async fn alone(source: &MadeUp) -> Result<(), SourceError> {
    let events = NonZeroU32::new(500).unwrap_or(NonZeroU32::MIN);
    loop {
        let claimed = source
            .claim(ClaimRequest::new(events, Duration::from_secs(30)))
            .await?;
        if claimed.is_empty() {
            return Ok(());
        }
        let done = claimed.into_iter().map(|claimed| Settlement {
            token: claimed.token,
            position: claimed.position,
            id: claimed.id,
            outcome: outbox_core::Outcome::Completed,
        });
        source.settle(done.collect()).await?;
    }
}

/// User and system time of this process, in seconds; 0 where /proc does not tell.
fn cpu_seconds() -> f64 {
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}
