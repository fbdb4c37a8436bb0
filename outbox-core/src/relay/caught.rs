//! A future of unknown manners: panics in polling and in dropping are caught.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use super::error_text::drop_quietly;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Resolves to the future's output, or to what its panic said. Holds nothing after that.
pub(super) struct Caught<'a, T>(Option<BoxFuture<'a, T>>);

impl<'a, T> Caught<'a, T> {
    pub(super) fn new(future: BoxFuture<'a, T>) -> Self {
        Self(Some(future))
    }

    /// Whether dropping the future went without a panic.
    fn discard(&mut self) -> bool {
        self.0.take().is_none_or(drop_quietly)
    }
}

impl<T> Future for Caught<'_, T> {
    type Output = Result<T, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.0.as_mut() else {
            return Poll::Pending;
        };
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => {
                if self.discard() {
                    return Poll::Ready(Ok(output));
                }
                // The output is user data too.
                drop_quietly(output);
                Poll::Ready(Err("dropping the delivery's future panicked".to_owned()))
            }
            Err(payload) => {
                let message = panic_message(payload);
                self.discard();
                Poll::Ready(Err(message))
            }
        }
    }
}

impl<T> Drop for Caught<'_, T> {
    fn drop(&mut self) {
        self.discard();
    }
}

/// What a panic said, if it said it in words.
pub(super) fn panic_message(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&'static str>().copied();
    let message = text
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
        .to_owned();
    drop_quietly(payload);
    message
}
