//! The Postgres source keeps the contract of every source.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::conformance::{Counts, Harness};
use outbox_core::{Envelope, EventId, EventType, NewEvent, OrderingKey, Source, TenantId};
use outbox_pg::{Names, PgSource};
use support::World;

struct Postgres {
    world: World,
    source: Arc<PgSource>,
}

impl Postgres {
    async fn new() -> Self {
        let world = World::new().await;
        let source = Arc::new(world.source().start().await.unwrap());
        Self { world, source }
    }

    /// Runs a script as an operator would: under the lock of claims.
    async fn operate(&self, script: &str) {
        let script =
            format!("BEGIN; SELECT pg_advisory_xact_lock(outbox.outbox_lock_number(1)); {script} COMMIT;");
        self.world.run(&Names::default().render(&script)).await;
    }
}

#[async_trait::async_trait]
impl Harness for Postgres {
    fn source(&self) -> Arc<dyn Source> {
        self.source.clone()
    }

    fn short_lease(&self) -> Duration {
        Duration::from_millis(1500)
    }

    async fn publish(&self, envelope: Envelope, delay: Duration) {
        let mut event = NewEvent::raw(envelope.event_type, envelope.payload)
            .with_id(envelope.id)
            .with_tenant(envelope.tenant_id);
        event.aggregate_type = envelope.aggregate_type;
        event.aggregate_id = envelope.aggregate_id;
        event.ordering_key = envelope.ordering_key;
        event.headers = envelope.headers;
        if !delay.is_zero() {
            event = event.with_delay(delay);
        }
        self.world.publish(event).await;
    }

    async fn counts(&self) -> Counts {
        let count = async |status: &str| {
            usize::try_from(self.world.count(&format!("status = '{status}'")).await).unwrap()
        };
        Counts {
            pending: count("pending").await,
            completed: count("completed").await,
            failed: count("failed").await,
        }
    }

    async fn publish_undecodable(&self, id: EventId) {
        let sql = format!(
            "INSERT INTO outbox.outbox (id, event_type, payload, headers) VALUES ('{id}', 'T', '1', '{{\"n\": 1}}')"
        );
        self.world.run(&sql).await;
    }

    async fn pause(&self, event_type: &EventType) {
        let script = format!("SELECT outbox.outbox_pause('type', '', '{event_type}')");
        self.world.run(&script).await;
    }

    async fn resume(&self, tenant: &TenantId, key: &OrderingKey) {
        self.operate(&format!(
            "DELETE FROM outbox.outbox_block WHERE scope = 'key' AND tenant_id = '{tenant}' AND name = '{key}';
             SELECT outbox.outbox_promote(ARRAY[outbox.outbox_key('{tenant}', '{key}')], clock_timestamp());"
        ))
        .await;
    }

    async fn redrive(&self, tenant: &TenantId, id: EventId) {
        self.operate(&format!(
            "SELECT outbox.outbox_change_failed('redrive', ARRAY[id], ARRAY[seq], clock_timestamp()) FROM outbox.outbox
             WHERE id = '{id}' AND tenant_id = '{tenant}';"
        ))
        .await;
    }
}

outbox_core::source_conformance! {
    harness = Postgres::new().await,
    leases = yes,
    schedules = yes,
    excluded_types = yes,
    ordering = yes,
    key_policies = yes,
    pauses = yes,
    undecodable = yes,
    hints = yes,
}
