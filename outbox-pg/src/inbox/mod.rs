//! The consumer's memory of handled events.

mod batch;
mod batcher;
mod dedupe;
mod follow_up;
mod outage;
mod transaction;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{EventId, PartName, SourceError, TenantId};
use sqlx::{PgConnection, PgPool, Row};
use uuid::Uuid;

pub use self::batch::{TxBatchHandler, TxBatchHandlerFn};
pub use self::batcher::Batched;
pub use self::dedupe::Deduplicated;
pub use self::follow_up::PublishFollowUp;
pub use self::transaction::{FromState, Transactional, TxHandler, TxHandlerFn};
use crate::Names;
use crate::error::source_error;
use crate::sql::Sql;

/// Remembers which handler has handled which event, in the table `processed_events`.
///
/// Its handlers run in a transaction of this pool and have one committed effect per event, however often, and by however
/// many relays at once, the event is delivered:
///
/// ```no_run
/// use outbox_core::{Context, Event, HandlerError};
/// use outbox_pg::{Names, PgInbox};
/// use sqlx::PgConnection;
///
/// # #[derive(serde::Serialize, serde::Deserialize)] struct OrderPlaced { order: i64 }
/// # impl Event for OrderPlaced { const EVENT_TYPE: &'static str = "OrderPlaced"; }
/// async fn bill(event: OrderPlaced, tx: &mut PgConnection, _: Context) -> Result<(), HandlerError> {
///     sqlx::query("INSERT INTO bills (order_id) VALUES ($1)").bind(event.order).execute(tx).await?;
///     Ok(()) // the bill and the note that this event is done are committed together
/// }
///
/// # fn register<H: outbox_core::Handler<OrderPlaced>>(name: &str, handler: H) {}
/// # fn set_up(pool: sqlx::PgPool) {
/// let inbox = PgInbox::new(pool, &Names::default());
/// register("billing", inbox.transactional(bill)); // such as `Registry::on::<OrderPlaced>`
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct PgInbox {
    pool: PgPool,
    statements: Arc<Statements>,
}

#[derive(Debug)]
struct Statements {
    receive: Sql,
    receive_all: Sql,
    limit_statements: Sql,
    knows: Sql,
    prune: Sql,
}

impl PgInbox {
    /// The inbox in the schema of that name. Handlers take a connection of the pool each while they run; give them one of
    /// their own, or the application's.
    #[must_use]
    pub fn new(pool: PgPool, names: &Names) -> Self {
        let sql = |text| Sql::new(names, text);
        Self {
            pool,
            statements: Arc::new(Statements {
                receive: sql("SELECT \"outbox\".\"outbox_receive\"($1, $2, $3)"),
                receive_all: sql("SELECT \"outbox\".\"outbox_receive_all\"($1, $2, $3)"),
                limit_statements: sql(include_str!("../../sql/limit_statements.sql")),
                knows: sql(
                    "SELECT EXISTS (SELECT FROM \"outbox\".\"processed_events\" WHERE tenant_id = $1 AND handler = $2 AND event_id = $3)",
                ),
                prune: sql(
                    "SELECT deleted, next_page FROM \"outbox\".\"outbox_prune_inbox\"($1 * interval '1 millisecond', $2, 512)",
                ),
            }),
        }
    }

    /// Makes a handler that runs in a fresh transaction per event: `async fn(E, &mut PgConnection, Context)`, an async
    /// closure of that form, or a [`TxHandler`]. Register it like every other handler.
    pub fn transactional<H>(&self, handler: H) -> Transactional<H> {
        Transactional::new(self.clone(), handler)
    }

    /// Makes a handler that gets many events in one transaction, for high rates: `async fn(Vec<(E, Context)>, &mut
    /// PgConnection)`, or a [`TxBatchHandler`]. Register it like every other handler.
    pub fn batched<E, H>(&self, handler: H) -> Batched<E, H> {
        Batched::new(self.clone(), handler)
    }

    /// Makes a handler without a transaction skip events that it has handled. **At least once**: the note is written
    /// after the handler has succeeded, so a crash in between, or two deliveries at once, run it again.
    pub fn deduplicated<H>(&self, handler: H) -> Deduplicated<H> {
        Deduplicated::new(self.clone(), handler)
    }

    /// Records, in the caller's transaction, that a handler handles an event, and sets `app.current_tenant` for the rest of
    /// the transaction. Returns whether the event is new to the handler: only then there is something to do.
    ///
    /// Waits for another transaction that has just recorded the same.
    ///
    /// # Errors
    /// What the database says; the transaction has to be rolled back.
    ///
    /// # Cancel safety
    /// The record may or may not be in the transaction, which is the caller's to roll back.
    pub async fn receive(
        &self,
        tx: &mut PgConnection,
        handler: &PartName,
        tenant_id: &TenantId,
        id: EventId,
    ) -> Result<bool, sqlx::Error> {
        let query = self.statements.receive.query();
        let query = query
            .bind(tenant_id.as_str().to_owned())
            .bind(handler.as_str().to_owned());
        query.bind(id.as_uuid()).fetch_one(tx).await?.try_get(0)
    }

    /// Has the server give up a statement of this transaction that takes longer.
    pub(crate) async fn limit_statements(
        &self,
        tx: &mut PgConnection,
        limit: Duration,
    ) -> Result<(), sqlx::Error> {
        let ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX).max(1);
        let query = self.statements.limit_statements.query().bind(ms);
        query.execute(tx).await.map(drop)
    }

    /// As [`receive`](Self::receive), for many events of one tenant; returns those that are new, in no order.
    pub(crate) async fn receive_all(
        &self,
        tx: &mut PgConnection,
        handler: &PartName,
        tenant_id: &TenantId,
        ids: Vec<Uuid>,
    ) -> Result<Vec<Uuid>, sqlx::Error> {
        let query = self.statements.receive_all.query();
        let query = query
            .bind(tenant_id.as_str().to_owned())
            .bind(handler.as_str().to_owned());
        let rows = query.bind(ids).fetch_all(tx).await?;
        rows.iter().map(|row| row.try_get(0)).collect()
    }

    /// Whether a handler has handled an event.
    ///
    /// # Errors
    /// [`SourceError`] when the database cannot be reached or refuses.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn knows(
        &self,
        handler: &PartName,
        tenant_id: &TenantId,
        id: EventId,
    ) -> Result<bool, SourceError> {
        let failed = |error| source_error("look into inbox", error);
        let query = self.statements.knows.query();
        let query = query
            .bind(tenant_id.as_str().to_owned())
            .bind(handler.as_str().to_owned());
        let row = query
            .bind(id.as_uuid())
            .fetch_one(&self.pool)
            .await
            .map_err(failed)?;
        row.try_get(0).map_err(failed)
    }

    /// Forgets events handled longer ago than `retention`, and returns how many. The retention has to outlast the last
    /// possible redelivery: `docs/inbox.md` has the formula.
    ///
    /// # Errors
    /// [`SourceError`] when the database cannot be reached or refuses. What was forgotten until then stays so.
    ///
    /// # Cancel safety
    /// What was forgotten stays so.
    pub async fn prune(&self, retention: Duration) -> Result<u64, SourceError> {
        let failed = |error| source_error("prune inbox", error);
        let (mut page, mut all) = (Some(0_i64), 0);
        while let Some(from) = page {
            let query = self.statements.prune.query();
            let query = query.bind(retention.as_millis() as f64).bind(from);
            let row = query.fetch_one(&self.pool).await.map_err(failed)?;
            all += u64::try_from(row.try_get::<i32, _>(0).map_err(failed)?).unwrap_or(0);
            page = row.try_get(1).map_err(failed)?;
        }
        Ok(all)
    }
}
