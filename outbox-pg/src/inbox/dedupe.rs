//! Deduplication for handlers without a transaction: at least once.

use outbox_core::{Context, Event, Handler, HandlerError, PartName};

use super::PgInbox;
use super::outage::database_error;
use super::transaction::recorded_name;
use crate::begin::Session;

/// A [`Handler`] that skips events it has handled. Made by [`PgInbox::deduplicated`].
///
/// **At least once**: the record follows the success. A crash in between, or two deliveries at once, run the handler
/// again. For effects that must not happen twice use [`PgInbox::transactional`].
#[derive(Debug, Clone)]
pub struct Deduplicated<H> {
    inbox: PgInbox,
    name: Option<PartName>,
    handler: H,
}

impl<H> Deduplicated<H> {
    pub(super) fn new(inbox: PgInbox, handler: H) -> Self {
        Self {
            inbox,
            name: None,
            handler,
        }
    }

    /// Sets the name under which events are recorded. Defaults to the name that the handler is registered under.
    #[must_use]
    pub fn recorded_as(mut self, name: PartName) -> Self {
        self.name = Some(name);
        self
    }
}

impl<E: Event, H: Handler<E>> Handler<E> for Deduplicated<H> {
    async fn handle(&self, event: E, ctx: Context) -> Result<(), HandlerError> {
        let name = recorded_name(self.name.as_ref(), &ctx)?;
        let (tenant_id, id) = (ctx.tenant_id().clone(), ctx.event_id());
        if self
            .inbox
            .knows(&name, &tenant_id, id)
            .await
            .map_err(HandlerError::outage)?
        {
            return Ok(());
        }
        self.handler.handle(event, ctx).await?;
        let mut session = Session::acquire(&self.inbox.pool).await.map_err(database_error)?;
        let mut tx = session.begin("BEGIN").await.map_err(database_error)?;
        self.inbox
            .receive(&mut tx, &name, &tenant_id, id)
            .await
            .map_err(database_error)?;
        tx.commit().await.map_err(database_error)
    }
}
