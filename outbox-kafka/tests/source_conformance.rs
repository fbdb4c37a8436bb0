//! The contract of a source, on a real topic with one partition.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::conformance::{Counts, Harness};
use outbox_core::{Envelope, EventId, Source};
use outbox_kafka::KafkaSource;
use rdkafka::message::{Header, OwnedHeaders};
use support::group::Group;
use support::until;
use tokio::time::Instant;

struct OnKafka {
    group: Group,
    source: Arc<KafkaSource>,
    published: AtomicUsize,
}

impl OnKafka {
    /// Waits until the source has read what was published: the suite claims at once.
    async fn published_one(&self) {
        let published = 1 + self.published.fetch_add(1, Ordering::SeqCst);
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            let totals = self.source.totals();
            if totals.unfinished + (totals.completed + totals.dead_letters) as usize >= published {
                return;
            }
            assert!(Instant::now() < patience, "it does not come");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn new() -> Self {
        let group = Group::shared(1).await;
        Self {
            source: group.source(),
            group,
            published: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl Harness for OnKafka {
    fn source(&self) -> Arc<dyn Source> {
        self.source.clone()
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn publish(&self, envelope: Envelope, _: Duration) {
        self.group.publish(envelope).await;
        self.published_one().await;
    }

    async fn counts(&self) -> Counts {
        // A failed event is a dead letter when it is on its topic, soon after its settlement.
        until(|| self.source.totals().unburied == 0).await;
        let totals = self.source.totals();
        let (completed, failed) = (totals.completed as usize, totals.dead_letters as usize);
        Counts {
            pending: self.published.load(Ordering::SeqCst) - completed - failed,
            completed,
            failed,
        }
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn publish_undecodable(&self, id: EventId) {
        let id = id.to_string();
        let headers = OwnedHeaders::new().insert(Header {
            key: "outbox-id",
            value: Some(&id),
        });
        self.group.publish_raw("", Some(b"no JSON"), headers).await;
        self.published_one().await;
    }
}

outbox_core::source_conformance! {
    harness = OnKafka::new().await,
    leases = yes,
    schedules = no,
    excluded_types = yes,
    ordering = yes,
    key_policies = no,
    pauses = no,
    undecodable = yes,
    hints = yes,
}
