//! Names of metrics, spans and logs, and the hook through which measurements leave the relay.
//!
//! The names are API: dashboards and alerts are built on them.

use std::time::Duration;

use tracing::Span;

use crate::{Breaker, Delivery, EventType, Listening, PartName};

/// Names of metrics.
pub mod metric {
    /// Histogram, seconds: from publishing to settling.
    pub const LAG_SECONDS: &str = "outbox_lag_seconds";
    /// Histogram: events per claim.
    pub const BATCH_SIZE: &str = "dispatcher_batch_size";
    /// Counter by `event_type` and `outcome`: settled events.
    pub const EVENTS_TOTAL: &str = "dispatcher_events_total";
    /// Histogram by `event_type`, `handler` and `outcome`, seconds: how long a handler ran.
    pub const HANDLER_SECONDS: &str = "dispatcher_handler_seconds";
    /// Gauge: events that wait.
    pub const PENDING_EVENTS: &str = "outbox_pending_events";
    /// Gauge, seconds: for how long an event that could run has been due, the longest.
    pub const OLDEST_PENDING_SECONDS: &str = "outbox_oldest_pending_seconds";
    /// Gauge: dead letters.
    pub const FAILED_EVENTS: &str = "outbox_failed_events";
    /// Counter: events whose claim ended before they were settled.
    pub const CLAIMS_LOST_TOTAL: &str = "outbox_claims_lost_total";
    /// Gauge, 0 or 1: whether the source is told of new events at once.
    pub const LISTENER_UP: &str = "outbox_listener_up";
    /// Gauge by `event_type`: where its outage breaker stands. 0 closed, 1 half-open, 2 open.
    pub const BREAKER_STATE: &str = "outbox_breaker_state";
    /// Counter: claims that failed.
    pub const POLL_ERRORS_TOTAL: &str = "outbox_poll_errors_total";
}

/// Names of log lines, as their message.
///
/// Not called `log`: that name means a crate inside the macros of `tracing` when its feature of that name is on.
pub mod log_line {
    /// A relay starts.
    pub const RELAY_STARTING: &str = "outbox_relay_starting";
    /// A relay has stopped.
    pub const RELAY_STOPPED: &str = "outbox_relay_stopped";
    /// The source failed; the relay goes on trying. One line per change, not per try.
    pub const POLL_FAILED: &str = "outbox_poll_failed";
    /// The source answers again.
    pub const POLL_RECOVERED: &str = "outbox_poll_recovered";
    /// Outcomes could not be recorded yet; they are kept and tried again.
    pub const SETTLE_FAILED: &str = "outbox_settle_failed";
    /// The source will not hold an outcome as it is: its error text is stored in plain ASCII instead, or if that is not the
    /// reason, the event comes again when its claim ends.
    pub const SETTLE_REFUSED: &str = "outbox_settle_refused";
    /// Claims could not be kept alive; they run on to their end.
    pub const EXTEND_FAILED: &str = "outbox_extend_failed";
    /// Claims ended before their events were settled.
    pub const CLAIMS_LOST: &str = "outbox_claims_lost";
    /// A handler ignores its cancellation.
    pub const HANDLER_STUCK: &str = "outbox_handler_stuck";
    /// A transport or a dependency is down: the events of a type wait for probes.
    pub const BREAKER_OPENED: &str = "outbox_breaker_opened";
    /// It is back.
    pub const BREAKER_CLOSED: &str = "outbox_breaker_closed";
    /// Nobody handles events of a type. Once for each type.
    pub const TYPE_UNHANDLED: &str = "outbox_type_unhandled";
    /// A handler panicked while what was left of it was dropped; its outcome stands.
    pub const HANDLER_DROP_PANICKED: &str = "outbox_handler_drop_panicked";
    /// An event became a dead letter.
    pub const EVENT_FAILED: &str = "outbox_event_failed";
    /// The in-process dispatcher starts.
    pub const DISPATCHER_STARTING: &str = "outbox_dispatcher_starting";
}

/// What spans are called.
pub mod span {
    /// The relay's loop.
    pub const POLLER: &str = "outbox-poller";
    /// Goes before the event type in the name of a dispatch span, unless configured.
    pub const CONSUME_PREFIX: &str = "shared.consume_";
}

/// How a settled event ended, as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutcomeLabel {
    /// Every part took it.
    Completed,
    /// Nobody listens for its type.
    Unhandled,
    /// It is tried again.
    Retry,
    /// It is a dead letter.
    Failed,
    /// It was handed back without a charge.
    Released,
}

impl OutcomeLabel {
    /// The label's text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Unhandled => "unhandled",
            Self::Retry => "retry",
            Self::Failed => "failed",
            Self::Released => "released",
        }
    }
}

/// Receives measurements. Every method does nothing unless implemented, and is called from hot paths: be quick.
///
/// The set grows with the project; new methods come with an empty default.
pub trait Metrics: Send + Sync + 'static {
    /// A claim took `events`; zero counts too.
    fn claimed(&self, events: usize) {
        let _ = events;
    }

    /// An event's outcome was recorded, `lag` after its publishing. No type is known of an event that cannot be decoded.
    fn settled(&self, event_type: Option<&EventType>, outcome: OutcomeLabel, lag: Option<Duration>) {
        let _ = (event_type, outcome, lag);
    }

    /// The claims of that many events ended before they were settled.
    fn claims_lost(&self, events: usize) {
        let _ = events;
    }

    /// A claim failed.
    fn poll_failed(&self) {}

    /// How the source hears of new events has changed.
    fn listening(&self, listening: Listening) {
        let _ = listening;
    }

    /// The outage breaker of an event type has moved.
    fn breaker(&self, event_type: &EventType, breaker: Breaker) {
        let _ = (event_type, breaker);
    }

    /// A dispatcher ran one part of a delivery.
    fn handled(&self, event_type: &EventType, part: &PartName, outcome: OutcomeLabel, took: Duration) {
        let _ = (event_type, part, outcome, took);
    }
}

/// Ties the spans of deliveries to what they follow from. Not called while nobody listens to spans.
pub trait SpanLinks: Send + Sync + 'static {
    /// A try begins; its span has not been entered yet.
    fn begin(&self, span: &Span, delivery: &Delivery);

    /// The try has failed, and there will be another.
    fn retry(&self, span: &Span, delivery: &Delivery) {
        let _ = (span, delivery);
    }
}

/// Measures nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMetrics;

impl Metrics for NoMetrics {}
