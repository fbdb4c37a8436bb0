//! User code for one event type.

use std::fmt;
use std::time::Duration;

use crate::{BoxError, Context, Event, State};

/// Reacts to events of type `E`.
///
/// Implemented by structs, and by every `async fn(E, Context) -> Result<(), HandlerError>` and closure of that form.
/// Delivery is at least once: a handler may see an event again, and has to be idempotent.
///
/// ```
/// use outbox_core::{Context, Event, Handler, HandlerError};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPlaced { order: u64 }
///
/// impl Event for OrderPlaced {
///     const EVENT_TYPE: &'static str = "OrderPlaced";
/// }
///
/// struct Mailer;
///
/// impl Handler<OrderPlaced> for Mailer {
///     async fn handle(&self, event: OrderPlaced, _: Context) -> Result<(), HandlerError> {
///         println!("thank you for order {}", event.order);
///         Ok(())
///     }
/// }
///
/// async fn bill(event: OrderPlaced, _: Context) -> Result<(), HandlerError> {
///     u32::try_from(event.order)?; // `?` on any error asks for another try
///     Ok(())
/// }
///
/// fn is_handler(_: impl Handler<OrderPlaced>) {}
/// is_handler(Mailer);
/// is_handler(bill);
/// is_handler(|_: OrderPlaced, _: Context| async { Ok(()) });
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle the event `{E}`",
    label = "not a handler of `{E}`",
    note = "pass an `async fn(event: {E}, ctx: Context) -> Result<(), HandlerError>`, a closure of that form, or implement `Handler<{E}>`",
    note = "a handler has to be `Send + Sync + 'static`, and so has its future"
)]
pub trait Handler<E: Event>: Send + Sync + 'static {
    /// Handles one event.
    ///
    /// # Errors
    /// [`HandlerError::Retry`] to be called again after a wait, [`HandlerError::Reject`] to give the event up.
    ///
    /// # Cancel safety
    /// The future is dropped at its timeout, or when the relay has stopped and its grace period is over.
    fn handle(&self, event: E, ctx: Context) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Says, before any event comes, whether the application's state has what the handler needs. Defaults to yes.
    ///
    /// # Errors
    /// What is missing, and how to add it. Whoever builds a dispatcher refuses such a handler.
    fn check(&self, _state: &State) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E, F, Fut> Handler<E> for F
where
    E: Event,
    F: Fn(E, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    fn handle(&self, event: E, ctx: Context) -> impl Future<Output = Result<(), HandlerError>> + Send {
        self(event, ctx)
    }
}

/// How a handler says that it could not.
///
/// `?` turns any error into [`Retry`](Self::Retry).
pub enum HandlerError {
    /// Try again, after the wait that the retry policy gives.
    Retry(BoxError),
    /// Try again after this wait. Still bounded by the policy's number of attempts.
    RetryAfter(Duration, BoxError),
    /// Never try again: the event becomes a dead letter.
    Reject(BoxError),
    /// A dependency is down: try again later, without charging an attempt to the event.
    Outage(BoxError),
}

impl HandlerError {
    /// Asks for another try.
    pub fn retry(error: impl Into<BoxError>) -> Self {
        Self::Retry(error.into())
    }

    /// Asks for another try after `wait`.
    pub fn retry_after(wait: Duration, error: impl Into<BoxError>) -> Self {
        Self::RetryAfter(wait, error.into())
    }

    /// Gives the event up.
    pub fn reject(error: impl Into<BoxError>) -> Self {
        Self::Reject(error.into())
    }

    /// Says that a dependency is down.
    pub fn outage(error: impl Into<BoxError>) -> Self {
        Self::Outage(error.into())
    }
}

// No `impl Error for HandlerError`: it would rule out this conversion, and with it `?` in handlers.
impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::Retry(error.into())
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, error) = match self {
            Self::Retry(error) => ("Retry", error),
            Self::RetryAfter(_, error) => ("RetryAfter", error),
            Self::Reject(error) => ("Reject", error),
            Self::Outage(error) => ("Outage", error),
        };
        write!(f, "{kind}({error:?})")
    }
}
