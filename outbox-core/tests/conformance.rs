//! The in-memory source keeps the contract of every source.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::conformance::{Counts, Harness};
use outbox_core::memory::MemorySource;
use outbox_core::{Envelope, EventId, OrderingKey, Source, TenantId, Undecodable};

struct Memory(Arc<MemorySource>);

impl Memory {
    /// Its time is tokio's: paused, it takes none.
    fn new() -> Self {
        tokio::time::pause();
        Self(Arc::new(MemorySource::new()))
    }
}

#[async_trait::async_trait]
impl Harness for Memory {
    fn source(&self) -> Arc<dyn Source> {
        self.0.clone()
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    async fn publish(&self, envelope: Envelope, delay: Duration) {
        assert!(self.0.publish_after(envelope, delay));
    }

    async fn counts(&self) -> Counts {
        let counts = self.0.counts();
        Counts {
            pending: counts.pending,
            completed: counts.completed,
            failed: counts.failed,
        }
    }

    async fn publish_undecodable(&self, id: EventId) {
        let why = Undecodable {
            reason: "damaged for the test".to_owned(),
            event_type: None,
        };
        assert!(self.0.publish_undecodable(id, why));
    }

    async fn resume(&self, tenant: &TenantId, key: &OrderingKey) {
        assert!(self.0.resume(tenant, key));
    }

    async fn redrive(&self, tenant: &TenantId, id: EventId) {
        assert!(self.0.redrive(tenant, id));
    }
}

outbox_core::source_conformance! {
    harness = Memory::new(),
    leases = yes,
    schedules = yes,
    excluded_types = yes,
    ordering = yes,
    key_policies = yes,
    pauses = no,
    undecodable = yes,
    hints = yes,
}
