//! Publishing inside the caller's transaction.

use std::fmt;
use std::sync::Arc;

use outbox_core::{
    Due, Headers, IntoNewEvent, InvalidEvent, NewEvent, PAYLOAD_BYTES_MAX, PublishError, Published, TenantId,
};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};
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
#[derive(Clone)]
pub struct PgPublisher {
    one: Sql,
    many: Sql,
    /// For events that have a tenant of their own.
    many_as: Sql,
    /// For other drivers.
    pub(crate) text: Sql,
    tenant_id: Option<TenantId>,
    payload_bytes_max: usize,
    stamp: Option<Stamp>,
}

/// Adds headers to an event about to be published.
type Stamp = Arc<dyn Fn(&mut Headers) + Send + Sync>;

impl fmt::Debug for PgPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgPublisher")
            .field("one", &self.one)
            .field("tenant_id", &self.tenant_id)
            .field("payload_bytes_max", &self.payload_bytes_max)
            .finish_non_exhaustive()
    }
}

impl PgPublisher {
    /// A publisher for the outbox of that name.
    #[must_use]
    pub fn new(names: &Names) -> Self {
        Self {
            one: Sql::new(names, include_str!("../sql/publish.sql")),
            many: Sql::new(names, include_str!("../sql/publish_all.sql")),
            many_as: Sql::new(names, include_str!("../sql/publish_as.sql")),
            text: Sql::new(names, include_str!("../sql/publish_text.sql")),
            tenant_id: None,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            stamp: None,
        }
    }

    /// Called with the headers of each event before it is checked, to add some: trace context, say. Defaults to nothing.
    #[must_use]
    pub fn stamped(mut self, stamp: impl Fn(&mut Headers) + Send + Sync + 'static) -> Self {
        self.stamp = Some(Arc::new(stamp));
        self
    }

    /// Sets the tenant of events that name none. By default they inherit the tenant of the caller's transaction: what
    /// `app.current_tenant` says there, nobody if it says nothing. The empty tenant is nobody, whatever it says there: here,
    /// in an event, and in every other way to publish.
    ///
    /// An event with a tenant can be published in a transaction that has none: its row passes row security, and the
    /// transaction has no tenant again afterwards. In a transaction of another tenant it is refused where tenants are isolated.
    #[must_use]
    pub fn with_tenant(mut self, tenant_id: TenantId) -> Self {
        self.tenant_id = Some(tenant_id);
        self
    }

    /// Sets the most bytes of payload that an event may have. Defaults to 1 MiB; a relay keeps many in memory.
    #[must_use]
    pub fn with_payload_bytes_max(mut self, payload_bytes_max: usize) -> Self {
        self.payload_bytes_max = payload_bytes_max;
        self
    }

    /// Publishes through a pooler in transaction mode: without prepared statements, which would be another session's.
    ///
    /// Publish inside of a transaction then, as always: alone, a statement's halves may meet two sessions.
    #[must_use]
    pub fn pooler(mut self) -> Self {
        self.one = self.one.unprepared();
        self.many = self.many.unprepared();
        self.many_as = self.many_as.unprepared();
        self
    }

    /// Publishes one event: a value that implements [`Event`](outbox_core::Event), or a [`NewEvent`] with an id, a tenant, headers
    /// or a delay of its own.
    ///
    /// An event whose id is known in its tenant is not written again, and [`Published::known`] says so.
    ///
    /// # Errors
    /// [`PublishError::Invalid`] before anything is written: the transaction goes on as if nothing had been asked. That
    /// includes an inherited tenant that no event can have.
    /// [`PublishError::Store`] when the statement failed: the transaction has to be rolled back.
    ///
    /// # Cancel safety
    /// The event may or may not have been written in the caller's transaction, which is the caller's to roll back.
    pub async fn publish(
        &self,
        connection: &mut PgConnection,
        event: impl IntoNewEvent,
    ) -> Result<Published, PublishError> {
        let event = self.ready(event)?;
        let tenant_id = self.tenant_of(&event);
        if tenant_id.is_some_and(|tenant_id| !tenant_id.is_none()) {
            let mut columns = Columns::default();
            columns.push(&event, self)?;
            return self.write_as(connection, columns).await;
        }
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
            .bind(tenant_id.map(TenantId::as_str))
            .bind(event.payload.as_str())
            .bind(headers)
            .bind(at)
            .bind(after)
            .execute(&mut *connection)
            .await
            .map_err(store)?;
        if done.rows_affected() == 0 && tenant_id.is_none() {
            check_inherited(connection).await?;
        }
        Ok(Published::of(done.rows_affected(), 1))
    }

    /// Publishes many events in one statement, in the order given.
    ///
    /// All are checked before anything is sent: one that is refused refuses them all, and the error says which.
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
        if columns.tenant_ids.iter().any(Option::is_some) {
            return self.write_as(connection, columns).await;
        }
        let done = columns
            .bind(&self.many)
            .execute(&mut *connection)
            .await
            .map_err(store)?;
        if done.rows_affected() == 0 {
            check_inherited(connection).await?;
        }
        Ok(Published::of(done.rows_affected(), all))
    }

    /// The event as it will be written.
    pub(crate) fn ready(&self, event: impl IntoNewEvent) -> Result<NewEvent, InvalidEvent> {
        let mut event = event.into_new_event()?;
        if let Some(stamp) = &self.stamp {
            stamp(&mut event.headers);
        }
        event.check(self.payload_bytes_max)?;
        Ok(event)
    }

    /// The tenant that an event is to have, unless it inherits one.
    pub(crate) fn tenant_of<'a>(&'a self, event: &'a NewEvent) -> Option<&'a TenantId> {
        event.tenant_id.as_ref().or(self.tenant_id.as_ref())
    }

    async fn write_as(
        &self,
        connection: &mut PgConnection,
        columns: Columns,
    ) -> Result<Published, PublishError> {
        let all = columns.ids.len() as u64;
        let inherits = columns.tenant_ids.iter().any(Option::is_none);
        let query = columns.bind(&self.many_as);
        let written: i64 = query
            .fetch_one(&mut *connection)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(store)?;
        if written == 0 && inherits {
            check_inherited(connection).await?;
        }
        Ok(Published::of(u64::try_from(written).unwrap_or(0), all))
    }
}

fn store(error: sqlx::Error) -> PublishError {
    PublishError::Store(error.into())
}

/// Why nothing was written, unless all was known: the transaction's tenant is none that an event can have.
async fn check_inherited(connection: &mut PgConnection) -> Result<(), PublishError> {
    let tenant: Option<String> = sqlx::query_scalar("SELECT current_setting('app.current_tenant', true)")
        .persistent(false)
        .fetch_one(connection)
        .await
        .map_err(store)?;
    TenantId::new(tenant.unwrap_or_default()).map_err(InvalidEvent::from)?;
    Ok(())
}

/// Events as lists that run side by side, for one statement.
#[derive(Default)]
struct Columns {
    ids: Vec<Uuid>,
    event_types: Vec<String>,
    aggregate_types: Vec<Option<String>>,
    aggregate_ids: Vec<Option<String>>,
    ordering_keys: Vec<Option<String>>,
    tenant_ids: Vec<Option<String>>,
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
        for (index, event) in events.into_iter().enumerate() {
            let nth = |error: InvalidEvent| error.of_list(index + 1);
            let event = publisher.ready(event).map_err(nth)?;
            columns.push(&event, publisher).map_err(nth)?;
        }
        Ok(columns)
    }

    fn push(&mut self, event: &NewEvent, publisher: &PgPublisher) -> Result<(), InvalidEvent> {
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
            .push(publisher.tenant_of(event).map(|id| text(id)));
        self.payloads.push(event.payload.as_str().to_owned());
        self.due_at.push(at);
        self.delays.push(after);
        Ok(())
    }

    fn bind(self, statement: &Sql) -> Query<'static, Postgres, PgArguments> {
        statement
            .query()
            .bind(self.ids)
            .bind(self.event_types)
            .bind(self.aggregate_types)
            .bind(self.aggregate_ids)
            .bind(self.ordering_keys)
            .bind(self.tenant_ids)
            .bind(self.payloads)
            .bind(self.headers)
            .bind(self.due_at)
            .bind(self.delays)
    }
}

pub(crate) fn headers_json(event: &NewEvent) -> Result<String, InvalidEvent> {
    serde_json::to_string(&event.headers).map_err(|cause| InvalidEvent::Header {
        event_type: event.event_type.clone(),
        name: String::new(),
        problem: format!("cannot be JSON: {cause}"),
    })
}

/// Microseconds since 1970, or from now; far delays end at the last instant that both sides know.
pub(crate) fn due(due: Due) -> (Option<i64>, Option<i64>) {
    const CENTURY_US: i64 = 100 * 366 * 24 * 3600 * 1_000_000;
    match due {
        Due::AtOnce => (None, None),
        // What was due before 1970 is due; Postgres knows no year as early as some that a caller can name.
        Due::At(instant) => (Some(to_micros(instant).max(0)), None),
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
