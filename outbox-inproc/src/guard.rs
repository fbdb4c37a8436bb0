//! Keeps panics of user code where they arise: while it runs, while it is dropped, while its error is shown.

use std::any::Any;
use std::error::Error;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use outbox_core::telemetry::log_line;
use outbox_core::{BoxError, HandlerError};

/// The most bytes kept of one handler's error: enough to say what happened, and ten failing handlers still fit.
const TEXT_LIMIT: usize = 4096;

/// How many causes of an error are followed.
const CHAIN_LIMIT: usize = 16;

/// Runs user code; a panic comes back as its message.
///
/// Unwind safety: what the closure touched is dropped or never looked at again after a panic.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(panic_text)
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = if let Some(text) = panic.downcast_ref::<&'static str>() {
        bounded(text)
    } else if let Some(text) = panic.downcast_ref::<String>() {
        bounded(text)
    } else {
        "a value that is no text".to_owned()
    };
    // The value may panic in its own `drop`; what that throws is leaked, or there would be no end to it.
    if let Err(nested) = catch_unwind(AssertUnwindSafe(move || drop(panic))) {
        std::mem::forget(nested);
    }
    text
}

type BoxHandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;

/// A handler's future that cannot unwind into its caller.
pub(crate) struct GuardedFuture<'a>(Option<BoxHandlerFuture<'a>>);

impl<'a> GuardedFuture<'a> {
    pub(crate) fn new(future: BoxHandlerFuture<'a>) -> Self {
        Self(Some(future))
    }

    /// Drops the handler's future now; a panic comes back as its message.
    pub(crate) fn abandon(&mut self) -> Result<(), String> {
        let future = self.0.take();
        catch(|| drop(future))
    }
}

impl Future for GuardedFuture<'_> {
    type Output = Result<Result<(), HandlerError>, String>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Some(future) = self.0.as_mut() else {
            return Poll::Pending;
        };
        let end = match catch(|| future.as_mut().poll(cx)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(result)) => Ok(result),
            Err(panic) => Err(panic),
        };
        // The handler's word stands: a panic after it has spoken changes nothing.
        if let Err(panic) = self.abandon() {
            tracing::warn!(panic, "{}", log_line::HANDLER_DROP_PANICKED);
        }
        Poll::Ready(end)
    }
}

impl Drop for GuardedFuture<'_> {
    fn drop(&mut self) {
        if let Err(panic) = self.abandon() {
            tracing::warn!(panic, "{}", log_line::HANDLER_DROP_PANICKED);
        }
    }
}

/// The text of a handler's error with its causes, bounded, whatever its `Display` does.
pub(crate) fn error_text(error: BoxError) -> String {
    let text = catch(|| chain_text(&*error))
        .unwrap_or_else(|panic| format!("error that cannot be shown, its display panicked: {panic}"));
    match catch(|| drop(error)) {
        Ok(()) => text,
        Err(panic) => format!("{text} (the error panicked in drop: {panic})"),
    }
}

fn chain_text(error: &(dyn Error + 'static)) -> String {
    let mut text = bounded(error);
    let mut cause = error.source();
    for _ in 0..CHAIN_LIMIT {
        let Some(error) = cause else { break };
        let next = bounded(error);
        // Many errors already show their cause.
        if !text.contains(&next) {
            text = bounded(format_args!("{text}: {next}"));
        }
        cause = error.source();
    }
    text
}

fn bounded(value: impl fmt::Display) -> String {
    let mut out = Bounded(String::new());
    // The only error is ours: the limit was reached.
    let _ = write!(out, "{value}");
    out.0
}

/// Takes text up to the limit and then ends the writer's work.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = TEXT_LIMIT - self.0.len();
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Endless;

    impl fmt::Display for Endless {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            loop {
                f.write_str("äöü")?;
            }
        }
    }

    #[test]
    fn an_endless_text_is_cut_at_a_character() {
        let text = bounded(Endless);

        assert!(text.len() <= TEXT_LIMIT && text.len() > TEXT_LIMIT - 4);
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Link>>,
    }

    #[test]
    fn causes_are_named_once() {
        let io = Link {
            text: "connection refused",
            source: None,
        };
        let smtp = Link {
            text: "smtp: connection refused",
            source: Some(Box::new(io)),
        };
        let mail = Link {
            text: "mail not sent",
            source: Some(Box::new(smtp)),
        };

        assert_eq!(error_text(mail.into()), "mail not sent: smtp: connection refused");
    }

    struct ThrowsInDrop;

    impl Drop for ThrowsInDrop {
        fn drop(&mut self) {
            std::panic::panic_any("thrown while dropping what was thrown");
        }
    }

    #[test]
    fn a_panic_whose_value_panics_in_drop_is_survived() {
        let end = catch(|| std::panic::panic_any(ThrowsInDrop));

        assert_eq!(end, Err("a value that is no text".to_owned()));
    }
}
