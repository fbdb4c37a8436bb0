//! Handlers that run in a transaction of their own, with one committed effect per event.

use std::future::Future;

use outbox_core::{BoxError, Context, Event, Handler, HandlerError, PartName, State};
use sqlx::{PgConnection, Row};

use super::PgInbox;
use super::outage::{connection, database_error, passed_on};

/// Reacts to events of type `E` in a fresh transaction.
///
/// Implemented by structs, and by every `async fn(E, &mut PgConnection, Context) -> Result<(), HandlerError>` and async
/// closure of that form. [`PgInbox::transactional`] makes a [`Handler`] of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle the event `{E}` in a transaction",
    label = "not a transactional handler of `{E}`",
    note = "pass an `async fn(event: {E}, tx: &mut PgConnection, ctx: Context) -> Result<(), HandlerError>`, or implement `TxHandler<{E}>`",
    note = "a handler has to be `Send + Sync + 'static`, and so has its future"
)]
pub trait TxHandler<E: Event>: Send + Sync + 'static {
    /// Handles one event. What is done on `tx` is committed when this returns `Ok`, and rolled back otherwise; what is
    /// done elsewhere is done at least once.
    ///
    /// # Errors
    /// As [`Handler::handle`].
    ///
    /// # Cancel safety
    /// Dropping the future rolls the transaction back.
    fn handle<'t>(
        &'t self,
        event: E,
        tx: &'t mut PgConnection,
        ctx: Context,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send + 't;
}

/// The functions that are a [`TxHandler`]. Implemented for them all; not for use by hand.
pub trait TxHandlerFn<'t, E>: Send + Sync {
    /// The future that the function returns, which may borrow the transaction.
    type Future: Future<Output = Result<(), HandlerError>> + Send + 't;
    /// Calls the function.
    fn call(&self, event: E, tx: &'t mut PgConnection, ctx: Context) -> Self::Future;
}

impl<'t, E, F, Fut> TxHandlerFn<'t, E> for F
where
    F: Fn(E, &'t mut PgConnection, Context) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 't,
{
    type Future = Fut;

    fn call(&self, event: E, tx: &'t mut PgConnection, ctx: Context) -> Fut {
        self(event, tx, ctx)
    }
}

impl<E, F> TxHandler<E> for F
where
    E: Event,
    F: for<'t> TxHandlerFn<'t, E> + 'static,
{
    fn handle<'t>(
        &'t self,
        event: E,
        tx: &'t mut PgConnection,
        ctx: Context,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send + 't {
        self.call(event, tx, ctx)
    }
}

/// A [`Handler`] that runs a [`TxHandler`] in a transaction per event. Made by [`PgInbox::transactional`].
///
/// The transaction first sets `app.current_tenant` to the event's tenant and records the event in the inbox; an event
/// that is known is skipped. Record and effect are committed together.
#[derive(Debug, Clone)]
pub struct Transactional<H> {
    inbox: PgInbox,
    name: Option<PartName>,
    handler: H,
}

impl<H> Transactional<H> {
    pub(super) fn new(inbox: PgInbox, handler: H) -> Self {
        Self {
            inbox,
            name: None,
            handler,
        }
    }

    /// Sets the name under which events are recorded. Defaults to the name that the handler is registered under.
    ///
    /// For a handler that is registered under a new name and must not handle again what it has handled under the old one.
    #[must_use]
    pub fn recorded_as(mut self, name: PartName) -> Self {
        self.name = Some(name);
        self
    }
}

impl<E: Event, H: TxHandler<E>> Handler<E> for Transactional<H> {
    async fn handle(&self, event: E, ctx: Context) -> Result<(), HandlerError> {
        let name = recorded_name(self.name.as_ref(), &ctx)?;
        handle_once(&self.inbox, &name, &self.handler, (event, ctx)).await
    }
}

const NO_INBOX: &str = "it takes a transaction, and the registry's state has no PgInbox; add one with `Registry::state(PgInbox::new(pool, &names))`";

/// A [`Handler`] that runs a [`TxHandler`] on the [`PgInbox`] among the application's state. What `#[on_event]` makes of a
/// function that takes a transaction.
#[derive(Debug, Clone)]
pub struct FromState<H>(pub H);

impl<E: Event, H: TxHandler<E>> Handler<E> for FromState<H> {
    async fn handle(&self, event: E, ctx: Context) -> Result<(), HandlerError> {
        let name = recorded_name(None, &ctx)?;
        let inbox = ctx.state::<PgInbox>().cloned();
        let inbox = inbox.ok_or_else(|| HandlerError::outage(NO_INBOX))?;
        handle_once(&inbox, &name, &self.0, (event, ctx)).await
    }

    fn check(&self, state: &State) -> Result<(), BoxError> {
        state.get::<PgInbox>().map(|_| ()).ok_or_else(|| NO_INBOX.into())
    }
}

async fn handle_once<E: Event>(
    inbox: &PgInbox,
    name: &PartName,
    handler: &impl TxHandler<E>,
    (event, ctx): (E, Context),
) -> Result<(), HandlerError> {
    let mut session = connection(&inbox.pool, ctx.deadline()).await?;
    let mut tx = session.begin("BEGIN").await.map_err(database_error)?;
    let new = inbox
        .receive(&mut tx, name, ctx.tenant_id(), ctx.event_id())
        .await;
    if !new.map_err(database_error)? {
        tracing::debug!(event.id = %ctx.event_id(), handler = %name, "outbox_event_known");
        return Ok(());
    }
    handler.handle(event, &mut tx, ctx).await.map_err(passed_on)?;
    still_open(&mut tx).await?;
    // A reply that is lost here leaves open whether it was committed. The event is delivered again, and the record says.
    tx.commit().await.map_err(database_error)
}

/// The name to record under: the given one, or the one that the dispatcher knows the handler by.
pub(super) fn recorded_name(own: Option<&PartName>, ctx: &Context) -> Result<PartName, HandlerError> {
    own.or_else(|| ctx.part()).cloned().ok_or_else(|| {
        HandlerError::outage(
            "the dispatcher names no handler, so its events cannot be recorded; use recorded_as",
        )
    })
}

/// Fails if the transaction was ended by the handler itself, which parts effect and record for good, or was aborted by a statement whose error the handler has passed over.
///
/// Postgres answers COMMIT of such a transaction with a rollback and no error: the event would be completed without effect.
pub(super) async fn still_open(tx: &mut PgConnection) -> Result<(), HandlerError> {
    let mark = sqlx::raw_sql("SELECT current_setting('outbox.received', true)");
    let mark = mark.fetch_one(tx).await.and_then(|row| row.try_get(0));
    let mark: Option<String> = mark.map_err(database_error)?;
    match mark.as_deref() {
        Some("yes") => Ok(()),
        _ => Err(HandlerError::reject(
            "the handler ended its transaction itself, by COMMIT or ROLLBACK: what it did is not held together with the record \
             of the event; leave both to the inbox",
        )),
    }
}
