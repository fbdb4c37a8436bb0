//! A relay with a handler that does nothing, and the proof that it did it once per event, in order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox::{
    Delivered, Delivery, Dispatcher, EventId, Failure, PgSourceBuilder, Relay, RelayHandle, RelaySettings,
};
use sqlx::Row;
use uuid::Uuid;

use super::Lab;

/// A handler that does nothing but remember the ids.
#[derive(Default)]
pub(crate) struct Seen {
    ids: Mutex<Vec<EventId>>,
    count: AtomicUsize,
}

#[async_trait]
impl Dispatcher for Seen {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.ids.lock().unwrap().push(delivery.envelope.id);
        self.count.fetch_add(1, Ordering::Release);
        Ok(Delivered::Handled)
    }
}

impl Seen {
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until so many were delivered.
    pub(crate) async fn wait_for(&self, events: usize) {
        while self.count() < events {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Every event of the table once, those of a key in their order, and all completed.
    pub(crate) async fn check(&self, lab: &Lab, completed: bool) {
        let rows = sqlx::query("SELECT id, seq, ordering_key FROM outbox.outbox")
            .fetch_all(lab.database.pool())
            .await
            .unwrap();
        let mut published: HashMap<Uuid, (i64, Option<String>)> = rows
            .iter()
            .map(|row| (row.get(0), (row.get(1), row.get(2))))
            .collect();
        let mut last: HashMap<String, i64> = HashMap::new();
        for id in self.ids.lock().unwrap().iter() {
            let (seq, key) = published.remove(&id.as_uuid()).expect("delivered twice");
            if let Some(key) = key {
                let before = last.insert(key, seq).unwrap_or(0);
                assert!(before < seq, "{seq} was overtaken by {before}");
            }
        }
        assert!(published.is_empty(), "{} events were lost", published.len());
        let left = lab
            .number("SELECT count(*) FROM outbox.outbox WHERE status <> 'completed'")
            .await;
        assert!(!completed || left == 0, "{left} events are not completed");
    }
}

/// Relays that share a handler.
pub(crate) struct Running {
    pub(crate) seen: Arc<Seen>,
    relays: Vec<RelayHandle>,
}

impl Running {
    pub(crate) async fn start(sources: impl IntoIterator<Item = PgSourceBuilder>) -> Self {
        Self::start_with(sources, RelaySettings::default()).await
    }

    pub(crate) async fn start_with(
        sources: impl IntoIterator<Item = PgSourceBuilder>,
        settings: RelaySettings,
    ) -> Self {
        let seen = Arc::new(Seen::default());
        let mut relays = Vec::new();
        for source in sources {
            let source = Arc::new(source.start().await.unwrap());
            let relay = Relay::builder(source, seen.clone()).settings(settings.clone());
            relays.push(relay.build().unwrap().spawn());
        }
        Self { seen, relays }
    }

    pub(crate) async fn stop(self) -> Arc<Seen> {
        for relay in self.relays {
            relay.shutdown().await.unwrap();
        }
        self.seen
    }
}

/// Drains the table. Measured from the second tenth of the events on, and to before the relay stops: what it takes to open
/// and to close sessions is left out, as it is of the floor. Returns events per second, and µs of the server's CPU per event.
pub(crate) async fn drain(
    lab: &Lab,
    sources: impl IntoIterator<Item = PgSourceBuilder>,
    events: usize,
) -> (f64, f64) {
    lab.execute("SELECT pg_stat_reset()").await;
    let running = Running::start(sources).await;
    running.seen.wait_for(events / 10).await;
    let (began, cpu, first) = (Instant::now(), lab.cpu(), running.seen.count());
    running.seen.wait_for(events).await;
    let seconds = began.elapsed().as_secs_f64();
    // For the last settlements, which count, too.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let measured = (events - first) as f64;
    let cpu = (lab.cpu() - cpu) / measured * 1e6;
    let seen = running.stop().await;
    seen.check(lab, true).await;
    lab.tell_calls(events).await;
    (measured / seconds, cpu)
}
