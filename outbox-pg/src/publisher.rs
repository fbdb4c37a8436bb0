//! Publishing inside the caller's transaction.

use outbox_core::{Due, IntoNewEvent, InvalidEvent, NewEvent, PublishError, Published, TenantId};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::Names;
use crate::instant::to_micros;
use crate::sql::Sql;

/// Writes events into the outbox, in whatever transaction the caller has open.
///
/// Publishing is one INSERT. It dispatches nothing and waits for no relay. Cheap to clone.
///
/// ```no_run
/// # use outbox_core::Event;
/// # use outbox_pg::{Names, PgPublisher};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct OrderPlaced { order: i64 }
/// # impl Event for OrderPlaced { const EVENT_TYPE: &'static str = "OrderPlaced"; }
/// # async fn place(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let publisher = PgPublisher::new(&Names::default());
///
/// let mut transaction = pool.begin().await?;
/// sqlx::query("INSERT INTO orders DEFAULT VALUES").execute(&mut *transaction).await?;
/// publisher.publish(&mut transaction, &OrderPlaced { order: 7 }).await?;
/// transaction.commit().await?; // the order and its event, or neither
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct PgPublisher {
    one: Sql,
    many: Sql,
    tenant_id: TenantId,
    payload_bytes_max: usize,
}

/// The most bytes of payload that an event may have unless set otherwise: 1 MiB.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;

impl PgPublisher {
    /// A publisher for the outbox of that name.
    #[must_use]
    pub fn new(names: &Names) -> Self {
        Self {
            one: Sql::new(names, include_str!("../sql/publish.sql")),
            many: Sql::new(names, include_str!("../sql/publish_all.sql")),
            tenant_id: TenantId::default(),
            payload_bytes_max: PAYLOAD_BYTES_MAX,
        }
    }

    /// Sets the tenant of events that name none. Defaults to the empty one.
    #[must_use]
    pub fn with_tenant(mut self, tenant_id: TenantId) -> Self {
        self.tenant_id = tenant_id;
        self
    }

    /// Sets the most bytes of payload that an event may have. Defaults to 1 MiB; a relay keeps many in memory.
    #[must_use]
    pub fn with_payload_bytes_max(mut self, payload_bytes_max: usize) -> Self {
        self.payload_bytes_max = payload_bytes_max;
        self
    }

    /// Publishes one event: a value that implements [`Event`](outbox_core::Event), or a [`NewEvent`] with an id, a tenant, headers
    /// or a delay of its own.
    ///
    /// An event whose id is known in its tenant is not written again, and [`Published::known`] says so.
    ///
    /// # Errors
    /// [`PublishError::Invalid`] before anything is sent: the transaction goes on as if nothing had been asked.
    /// [`PublishError::Store`] when the statement failed: the transaction has to be rolled back.
    ///
    /// # Cancel safety
    /// The event may or may not have been written in the caller's transaction, which is the caller's to roll back.
    pub async fn publish(
        &self,
        connection: &mut PgConnection,
        event: impl IntoNewEvent,
    ) -> Result<Published, PublishError> {
        let event = event.into_new_event()?;
        event.check(self.payload_bytes_max)?;
        let headers = headers_json(&event)?;
        let (at, after) = due(event.due);
        let done = self
            .one
            .query()
            .bind(event.id.as_uuid())
            .bind(event.event_type.as_str())
            .bind(event.aggregate_type.as_ref().map(AsRef::as_ref))
            .bind(event.aggregate_id.as_ref().map(AsRef::as_ref))
            .bind(event.ordering_key.as_ref().map(AsRef::as_ref))
            .bind(event.tenant_id.as_ref().unwrap_or(&self.tenant_id).as_str())
            .bind(event.payload.as_str())
            .bind(headers)
            .bind(at)
            .bind(after)
            .execute(connection)
            .await
            .map_err(|error| PublishError::Store(error.into()))?;
        Ok(Published::of(done.rows_affected(), 1))
    }

    /// Publishes many events in one statement, in the order given.
    ///
    /// All are checked before anything is sent: one that is refused refuses them all.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    ///
    /// # Cancel safety
    /// As [`publish`](Self::publish).
    pub async fn publish_all(
        &self,
        connection: &mut PgConnection,
        events: impl IntoIterator<Item = impl IntoNewEvent>,
    ) -> Result<Published, PublishError> {
        let columns = Columns::collect(self, events)?;
        let all = columns.ids.len() as u64;
        if all == 0 {
            return Ok(Published::of(0, 0));
        }
        let done = self
            .many
            .query()
            .bind(columns.ids)
            .bind(columns.event_types)
            .bind(columns.aggregate_types)
            .bind(columns.aggregate_ids)
            .bind(columns.ordering_keys)
            .bind(columns.tenant_ids)
            .bind(columns.payloads)
            .bind(columns.headers)
            .bind(columns.due_at)
            .bind(columns.delays)
            .execute(connection)
            .await
            .map_err(|error| PublishError::Store(error.into()))?;
        Ok(Published::of(done.rows_affected(), all))
    }
}

/// Events as lists that run side by side, for one statement.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    event_types: Vec<String>,
    aggregate_types: Vec<Option<String>>,
    aggregate_ids: Vec<Option<String>>,
    ordering_keys: Vec<Option<String>>,
    tenant_ids: Vec<String>,
    payloads: Vec<String>,
    headers: Vec<String>,
    due_at: Vec<Option<i64>>,
    delays: Vec<Option<i64>>,
}

impl Columns {
    fn collect(
        publisher: &PgPublisher,
        events: impl IntoIterator<Item = impl IntoNewEvent>,
    ) -> Result<Self, InvalidEvent> {
        let mut columns = Self::default();
        for event in events {
            let event = event.into_new_event()?;
            event.check(publisher.payload_bytes_max)?;
            columns.push(&event, &publisher.tenant_id)?;
        }
        Ok(columns)
    }

    fn push(&mut self, event: &NewEvent, tenant_id: &TenantId) -> Result<(), InvalidEvent> {
        let text = |text: &dyn AsRef<str>| text.as_ref().to_owned();
        let (at, after) = due(event.due);
        self.headers.push(headers_json(event)?);
        self.ids.push(event.id.as_uuid());
        self.event_types.push(text(&event.event_type));
        self.aggregate_types
            .push(event.aggregate_type.as_ref().map(|name| text(name)));
        self.aggregate_ids
            .push(event.aggregate_id.as_ref().map(|id| text(id)));
        self.ordering_keys
            .push(event.ordering_key.as_ref().map(|key| text(key)));
        self.tenant_ids
            .push(text(event.tenant_id.as_ref().unwrap_or(tenant_id)));
        self.payloads.push(event.payload.as_str().to_owned());
        self.due_at.push(at);
        self.delays.push(after);
        Ok(())
    }
}

fn headers_json(event: &NewEvent) -> Result<String, InvalidEvent> {
    serde_json::to_string(&event.headers).map_err(|cause| InvalidEvent::Header {
        event_type: event.event_type.clone(),
        name: String::new(),
        problem: format!("cannot be JSON: {cause}"),
    })
}

/// Microseconds since 1970, or from now; far delays end at the last instant that both sides know.
fn due(due: Due) -> (Option<i64>, Option<i64>) {
    const CENTURY_US: i64 = 100 * 366 * 24 * 3600 * 1_000_000;
    match due {
        Due::AtOnce => (None, None),
        Due::At(instant) => (Some(to_micros(instant)), None),
        Due::After(delay) => (
            None,
            Some(
                i64::try_from(delay.as_micros())
                    .unwrap_or(CENTURY_US)
                    .min(CENTURY_US),
            ),
        ),
    }
}
