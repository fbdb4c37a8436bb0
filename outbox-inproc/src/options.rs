//! What can be set for one handler, and for events that nobody handles.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{KeyPolicy, RetryPolicy};

/// How one handler is run. A name alone, such as `"billing"`, is enough: the rest follows the relay's settings.
///
/// ```
/// use std::time::Duration;
/// use outbox_inproc::HandlerOptions;
///
/// let options = HandlerOptions::new("billing").with_timeout(Duration::from_secs(5));
/// ```
///
/// An event has one policy although it may have several handlers; how theirs are merged stands at each option.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// Unique among the handlers of its event type, 1 to 199 bytes, not beginning with `!`. Stored beside events that
    /// failed in part, so it has to outlive refactoring.
    pub name: String,
    /// How long one try of this handler may take. Defaults to the relay's handler timeout.
    ///
    /// A try of the event may take as long as the longest of its handlers.
    pub timeout: Option<Duration>,
    /// When, and how often, this handler is tried. Defaults to the relay's retry policy.
    ///
    /// The waits of the event are those of the handler with the most attempts. A handler with fewer refuses the event
    /// once it has used up its own.
    pub retry: Option<RetryPolicy>,
    /// How many events of this type one relay may have in flight. Defaults to the relay's concurrency.
    ///
    /// The smallest number among the handlers of the event counts.
    pub concurrency: Option<NonZeroU32>,
    /// What a failed event means for the later ones of its ordering key. Defaults to going on.
    ///
    /// The strictest among the handlers of the event counts: park before stop before go on.
    pub key: KeyPolicy,
}

impl HandlerOptions {
    /// A handler of that name that follows the relay's settings. The name is checked by
    /// [`Registry::build`](crate::Registry::build).
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            timeout: None,
            retry: None,
            concurrency: None,
            key: KeyPolicy::default(),
        }
    }

    /// Sets how long one try may take.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets when, and how often, the handler is tried.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = Some(retry);
        self
    }

    /// Limits how many events of this type one relay has in flight.
    #[must_use]
    pub fn with_concurrency(mut self, concurrency: NonZeroU32) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Sets what a failed event means for its ordering key.
    #[must_use]
    pub fn with_key(mut self, key: KeyPolicy) -> Self {
        self.key = key;
        self
    }
}

impl From<&str> for HandlerOptions {
    fn from(name: &str) -> Self {
        Self::new(name)
    }
}

impl From<String> for HandlerOptions {
    fn from(name: String) -> Self {
        Self::new(name)
    }
}

/// What becomes of an event whose type has no handler.
///
/// Each such type is warned about once, whatever the choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Unhandled {
    /// It is completed and counted as unhandled: a module that no longer listens must not clog the outbox.
    #[default]
    Complete,
    /// It becomes a dead letter.
    Fail,
    /// It stays pending, and is looked at again after the given wait; no attempt is charged.
    Hold(Duration),
}
