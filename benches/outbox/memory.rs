//! The memory of a relay beside a small and a large backlog: it is bounded by settings, not by what waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox::{Delivered, Delivery, Dispatcher, Failure, PgSource, Relay};

use crate::harness::{Lab, Report, Size, Target};

/// Counts, and keeps nothing.
#[derive(Default)]
struct Counter(AtomicUsize);

#[async_trait]
impl Dispatcher for Counter {
    async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(Delivered::Handled)
    }
}

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    let large = size.events * 10;
    let mut report = Report::new("memory");
    report.fact("large backlog", large);
    // Once for whatever is allocated at first use.
    drain(&lab, 10_000).await;
    for _ in 0..size.rounds.min(3) {
        report.add("10 k events", &[("RSS MiB", drain(&lab, 10_000).await)]);
        report.add("large backlog", &[("RSS MiB", drain(&lab, large).await)]);
    }
    let grown = report.median("large backlog", "RSS MiB") - report.median("10 k events", "RSS MiB");
    report.ratio(
        "RSS MiB: large backlog - 10 k".into(),
        grown,
        Target::AtMost(10.0),
    );
    report.finish();
}

/// Drains so many events; returns the largest resident size of this process that was seen.
async fn drain(lab: &Lab, events: usize) -> f64 {
    // In the server, or filling would be measured, too.
    lab.execute("TRUNCATE outbox.outbox, outbox.outbox_lease").await;
    let insert = format!(
        "INSERT INTO outbox.outbox (id, event_type, payload)
        SELECT gen_random_uuid(), 'OrderPlaced', json_build_object('order', n, 'note', repeat('x', 310))
        FROM generate_series(1, {events}) AS event (n)"
    );
    lab.execute(&insert).await;
    lab.execute("VACUUM ANALYZE outbox.outbox").await;
    let counter = Arc::new(Counter::default());
    let source = PgSource::builder(lab.database.connect_options());
    let source = Arc::new(source.start().await.unwrap());
    let relay = Relay::builder(source, counter.clone()).build().unwrap().spawn();
    let mut largest = 0.0_f64;
    while counter.0.load(Ordering::Relaxed) < events {
        largest = largest.max(resident());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.shutdown().await.unwrap();
    assert_eq!(counter.0.load(Ordering::Relaxed), events, "delivered twice");
    let left = "SELECT count(*) FROM outbox.outbox WHERE status <> 'completed'";
    assert_eq!(lab.number(left).await, 0);
    largest
}

/// MiB of this process in memory.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1024.0)
}
