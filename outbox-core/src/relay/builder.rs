//! Putting a relay together.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use super::health::Health;
use crate::telemetry::{Metrics, SpanLinks, span};
use crate::{ConfigError, Dispatcher, RelaySettings, RetryPolicy, Source};

/// What a relay is made of.
pub(super) struct Parts {
    pub(super) source: Arc<dyn Source>,
    pub(super) dispatcher: Arc<dyn Dispatcher>,
    pub(super) settings: RelaySettings,
    pub(super) metrics: Option<Arc<dyn Metrics>>,
    pub(super) health: Arc<Health>,
    pub(super) span_prefix: Arc<str>,
    pub(super) span_links: Option<Arc<dyn SpanLinks>>,
}

/// Puts a relay together; made by [`Relay::builder`].
#[must_use]
pub struct RelayBuilder {
    source: Arc<dyn Source>,
    dispatcher: Arc<dyn Dispatcher>,
    settings: RelaySettings,
    metrics: Option<Arc<dyn Metrics>>,
    span_prefix: Arc<str>,
    span_links: Option<Arc<dyn SpanLinks>>,
}

impl fmt::Debug for RelayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayBuilder")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl RelayBuilder {
    pub(super) fn new(source: Arc<dyn Source>, dispatcher: Arc<dyn Dispatcher>) -> Self {
        let settings = RelaySettings::default();
        Self {
            source,
            dispatcher,
            settings,
            metrics: None,
            span_prefix: Arc::from(span::CONSUME_PREFIX),
            span_links: None,
        }
    }

    /// All settings at once, as from [`RelaySettings::from_env`]. Later setters change them.
    pub fn settings(mut self, settings: RelaySettings) -> Self {
        self.settings = settings;
        self
    }

    /// The most events of one claim.
    ///
    /// Large claims are cheap for the source; what a crash makes the others wait for grows with them. Claims start at
    /// 100 and grow to this while they come back full. From 1 to 10,000; defaults to 500.
    pub fn batch_size(mut self, events: NonZeroU32) -> Self {
        self.settings.batch_size = events;
        self
    }

    /// The longest time between two looks at the source while no hint comes.
    ///
    /// Too short keeps an idle source busy; too long delays events whose hint was lost. From 10 ms to a
    /// day; defaults to 5 seconds.
    pub fn poll_timeout(mut self, timeout: Duration) -> Self {
        self.settings.poll_timeout = timeout;
        self
    }

    /// The most characters that are stored of an error. From 64 to 1,000,000; defaults to 2,000.
    pub fn error_max_len(mut self, chars: usize) -> Self {
        self.settings.error_max_len = chars;
        self
    }

    /// The most events, or runs of one ordering key, that are being delivered at a time.
    ///
    /// Too many overwhelm what the handlers talk to; too few leave waiting handlers' time unused. From 1 to 10,000;
    /// defaults to 100.
    pub fn concurrency(mut self, deliveries: NonZeroU32) -> Self {
        self.settings.concurrency = deliveries;
        self
    }

    /// When failed events are tried again, unless their type has a policy of its own.
    ///
    /// Defaults to 10 attempts, with waits from 1 second to 5 minutes.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.settings.retry = retry;
        self
    }

    /// How long a claim is held unless it is extended, which happens three times per lease.
    ///
    /// Too short, and a pause of this process delivers events twice; too long, and events of a crashed relay wait that
    /// much. Must outlast `handler_timeout`; from 1 second to a day. Defaults to 30 seconds.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How long one try may take, unless the event's type has a policy of its own.
    ///
    /// Past it the delivery is cancelled, then dropped, and the event is tried again. At least 10 ms; defaults to 20
    /// seconds.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.settings.handler_timeout = timeout;
        self
    }

    /// How long running deliveries may go on after a stop was asked for.
    ///
    /// Keep it, and [`Relay::STOP_SLACK`] on top, below what the process is given to end. At most a day; defaults
    /// to 20 seconds.
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.settings.shutdown_grace = grace;
        self
    }

    /// After so many lost lone claims, an event is taken to kill its relay, and given up. Defaults to 3.
    pub fn max_lost(mut self, claims: NonZeroU32) -> Self {
        self.settings.max_lost = claims;
        self
    }

    /// The most bytes of payload and headers that the relay holds.
    ///
    /// A single event may exceed it alone, or it would never be delivered. Defaults to 64 MiB.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_bytes = bytes;
        self
    }

    /// Where measurements go, those of the dispatcher's handlers too. Defaults to nowhere.
    pub fn metrics(mut self, metrics: Arc<dyn Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// What goes before the event type in the name of a delivery's span. Defaults to `shared.consume_`.
    pub fn span_prefix(mut self, prefix: impl Into<Arc<str>>) -> Self {
        self.span_prefix = prefix.into();
        self
    }

    /// What makes the span of each try a child of the publishing request's. Defaults to nothing.
    pub fn span_links(mut self, links: impl SpanLinks) -> Self {
        self.span_links = Some(Arc::new(links));
        self
    }

    /// Checks the settings and how they relate.
    ///
    /// # Errors
    /// [`ConfigError`] names the first setting that cannot work, and what would be right.
    pub fn build(self) -> Result<Relay, ConfigError> {
        self.settings.check()?;
        let health = Arc::new(Health::new(self.settings.poll_timeout));
        Ok(Relay(Parts {
            source: self.source,
            dispatcher: self.dispatcher,
            settings: self.settings,
            metrics: self.metrics,
            health,
            span_prefix: self.span_prefix,
            span_links: self.span_links,
        }))
    }
}
