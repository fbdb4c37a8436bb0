//! Handlers that take many events in one transaction.

use std::future::Future;

use outbox_core::{Context, Event, HandlerError};
use sqlx::PgConnection;

/// Reacts to many events of type `E` in one transaction.
///
/// Implemented by structs, and by every `async fn(Vec<(E, Context)>, &mut PgConnection) -> Result<(), HandlerError>` and
/// async closure of that form. [`PgInbox::batched`](crate::PgInbox::batched) makes a [`Handler`](outbox_core::Handler) of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle events `{E}` in batches",
    label = "not a batch handler of `{E}`",
    note = "pass an `async fn(events: Vec<({E}, Context)>, tx: &mut PgConnection) -> Result<(), HandlerError>`, or implement `TxBatchHandler<{E}>`",
    note = "a handler has to be `Send + Sync + 'static`, and so has its future"
)]
pub trait TxBatchHandler<E: Event>: Send + Sync + 'static {
    /// Handles all of these events, of one tenant and none known to the inbox, or none of them.
    ///
    /// An error of a batch is charged to nobody: each of its events is then handled in a batch of its own. The same when a
    /// batch of several is not done in half of the time that its events have.
    ///
    /// # Errors
    /// As [`Handler::handle`](outbox_core::Handler::handle).
    ///
    /// # Cancel safety
    /// Dropping the future rolls the transaction back.
    fn handle<'t>(
        &'t self,
        events: Vec<(E, Context)>,
        tx: &'t mut PgConnection,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send + 't;
}

/// The functions that are a [`TxBatchHandler`]. Implemented for them all; not for use by hand.
pub trait TxBatchHandlerFn<'t, E>: Send + Sync {
    /// The future that the function returns, which may borrow the transaction.
    type Future: Future<Output = Result<(), HandlerError>> + Send + 't;
    /// Calls the function.
    fn call(&self, events: Vec<(E, Context)>, tx: &'t mut PgConnection) -> Self::Future;
}

impl<'t, E, F, Fut> TxBatchHandlerFn<'t, E> for F
where
    F: Fn(Vec<(E, Context)>, &'t mut PgConnection) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 't,
{
    type Future = Fut;

    fn call(&self, events: Vec<(E, Context)>, tx: &'t mut PgConnection) -> Fut {
        self(events, tx)
    }
}

impl<E, F> TxBatchHandler<E> for F
where
    E: Event,
    F: for<'t> TxBatchHandlerFn<'t, E> + 'static,
{
    fn handle<'t>(
        &'t self,
        events: Vec<(E, Context)>,
        tx: &'t mut PgConnection,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send + 't {
        self.call(events, tx)
    }
}
