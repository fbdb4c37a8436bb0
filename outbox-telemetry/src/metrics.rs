//! The relay's measurements as OpenTelemetry instruments.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter};
use opentelemetry::{InstrumentationScope, KeyValue, global};
use outbox_core::telemetry::{Metrics, OutcomeLabel, metric};
use outbox_core::{Breaker, EventType, Listening, PartName};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::labels::Labels;

/// The most event types, and the most handlers, that have a label of their own. The rest share the label `other`.
pub const LABELS_MAX: usize = 200;

/// What stands for the type of an event that cannot be decoded.
const UNDECODABLE: &str = "undecodable";

/// From a millisecond to a day: a lag may be either.
const SECONDS: [f64; 17] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0,
    86_400.0,
];
const EVENTS: [f64; 10] = [0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

/// Records what relays and dispatchers measure as OpenTelemetry metrics.
///
/// Give it to `Relay::builder(…).metrics(…)`, which hands it on to the handlers' registry. While the application has set up no provider of
/// meters, everything here does next to nothing. The instruments are listed in `docs/telemetry.md`.
pub struct OtelMetrics {
    lag: Histogram<f64>,
    batch: Histogram<u64>,
    events: Counter<u64>,
    handler: Histogram<f64>,
    claims_lost: Counter<u64>,
    poll_errors: Counter<u64>,
    listener: Gauge<u64>,
    breaker: Gauge<u64>,
    pending: Gauge<u64>,
    oldest: Gauge<f64>,
    failed: Gauge<u64>,
    types: Labels,
    handlers: Labels,
}

impl fmt::Debug for OtelMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtelMetrics").finish_non_exhaustive()
    }
}

/// How much waits in the outbox, as a query of the store says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Backlog {
    /// Pending events.
    pub pending: u64,
    /// For how long one of them has been due, the longest, in seconds.
    pub oldest_seconds: f64,
    /// Dead letters that nobody discarded.
    pub failed: u64,
}

/// Samples a backlog again and again. Ends when dropped.
#[derive(Debug)]
#[must_use = "dropping the sampler ends it"]
pub struct Sampler {
    _stop: DropGuard,
}

impl Default for OtelMetrics {
    fn default() -> Self {
        Self::global()
    }
}

impl OtelMetrics {
    /// Instruments of the global provider, as it is set now: set it before.
    #[must_use]
    pub fn global() -> Self {
        let scope = InstrumentationScope::builder("outbox").with_version(env!("CARGO_PKG_VERSION"));
        Self::new(&global::meter_with_scope(scope.build()))
    }

    /// Instruments of that meter.
    #[must_use]
    pub fn new(meter: &Meter) -> Self {
        let seconds = |name, what| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(what);
            histogram.with_boundaries(SECONDS.to_vec()).build()
        };
        let count = |name, what| {
            meter
                .u64_counter(name)
                .with_unit("{event}")
                .with_description(what)
                .build()
        };
        let level = |name, unit, what| {
            meter
                .u64_gauge(name)
                .with_unit(unit)
                .with_description(what)
                .build()
        };
        let metrics = Self {
            lag: seconds(metric::LAG_SECONDS, "from publishing an event to settling it"),
            batch: meter
                .u64_histogram(metric::BATCH_SIZE)
                .with_unit("{event}")
                .with_description("events per claim")
                .with_boundaries(EVENTS.to_vec())
                .build(),
            events: count(metric::EVENTS_TOTAL, "settled events"),
            handler: seconds(metric::HANDLER_SECONDS, "how long a handler ran"),
            claims_lost: count(
                metric::CLAIMS_LOST_TOTAL,
                "events whose claim ended before they were settled",
            ),
            poll_errors: meter
                .u64_counter(metric::POLL_ERRORS_TOTAL)
                .with_unit("{error}")
                .with_description("claims that failed")
                .build(),
            listener: level(
                metric::LISTENER_UP,
                "1",
                "whether the source is told of new events at once",
            ),
            breaker: level(
                metric::BREAKER_STATE,
                "1",
                "outage breaker of an event type: 0 closed, 1 half-open, 2 open",
            ),
            pending: level(metric::PENDING_EVENTS, "{event}", "events that wait"),
            oldest: meter
                .f64_gauge(metric::OLDEST_PENDING_SECONDS)
                .with_unit("s")
                .with_description("for how long an event that could run has been due, the longest")
                .build(),
            failed: level(metric::FAILED_EVENTS, "{event}", "dead letters"),
            types: Labels::new(LABELS_MAX),
            handlers: Labels::new(LABELS_MAX),
        };
        // From zero on: what a counter shows at first is no increase to those who watch it.
        metrics.claims_lost.add(0, &[]);
        metrics.poll_errors.add(0, &[]);
        metrics
    }

    /// Keeps labels for these event types, so that none from outside can take their place.
    #[must_use]
    pub fn with_known_types<T: AsRef<str>>(self, types: impl IntoIterator<Item = T>) -> Self {
        for name in types {
            let _ = self.types.of(name.as_ref());
        }
        self
    }

    /// Records how much waits.
    pub fn backlog(&self, backlog: Backlog) {
        self.pending.record(backlog.pending, &[]);
        self.oldest.record(backlog.oldest_seconds, &[]);
        self.failed.record(backlog.failed, &[]);
    }

    /// Records how much waits every so often, asking `look`. When that fails, the figures stay as they were.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn sample_backlog<F, Fut, E>(self: &Arc<Self>, every: Duration, look: F) -> Sampler
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Backlog, E>> + Send,
        E: fmt::Display,
    {
        let stop = CancellationToken::new();
        let (metrics, stopped) = (Arc::clone(self), stop.clone());
        tokio::spawn(async move {
            let mut failing = false;
            let sampling = async {
                loop {
                    match look().await {
                        Ok(backlog) => {
                            metrics.backlog(backlog);
                            failing = false;
                        }
                        // One line per change, as for polls.
                        Err(error) if !failing => {
                            tracing::warn!(%error, "outbox_backlog_unknown");
                            failing = true;
                        }
                        Err(_) => {}
                    }
                    tokio::time::sleep(every).await;
                }
            };
            stopped.run_until_cancelled(sampling).await
        });
        Sampler {
            _stop: stop.drop_guard(),
        }
    }
}

impl Metrics for OtelMetrics {
    fn claimed(&self, events: usize) {
        self.batch.record(events as u64, &[]);
    }

    fn settled(&self, event_type: Option<&EventType>, outcome: OutcomeLabel, lag: Option<Duration>) {
        // A label of its own, for which there is always room.
        let event_type =
            event_type.map_or_else(|| Arc::from(UNDECODABLE), |name| self.types.of(name.as_str()));
        let labels = [
            KeyValue::new("event_type", event_type),
            KeyValue::new("outcome", outcome.as_str()),
        ];
        self.events.add(1, &labels);
        if let Some(lag) = lag {
            self.lag.record(lag.as_secs_f64(), &[]);
        }
    }

    fn claims_lost(&self, events: usize) {
        self.claims_lost.add(events as u64, &[]);
    }

    fn poll_failed(&self) {
        self.poll_errors.add(1, &[]);
    }

    fn listening(&self, listening: Listening) {
        self.listener.record(u64::from(listening == Listening::Up), &[]);
    }

    fn breaker(&self, event_type: &EventType, breaker: Breaker) {
        let state = match breaker {
            Breaker::Closed => 0,
            Breaker::HalfOpen => 1,
            Breaker::Open => 2,
        };
        let labels = [KeyValue::new("event_type", self.types.of(event_type.as_str()))];
        self.breaker.record(state, &labels);
    }

    fn handled(&self, event_type: &EventType, part: &PartName, outcome: OutcomeLabel, took: Duration) {
        let labels = [
            KeyValue::new("event_type", self.types.of(event_type.as_str())),
            KeyValue::new("handler", self.handlers.of(part.as_str())),
            KeyValue::new("outcome", outcome.as_str()),
        ];
        self.handler.record(took.as_secs_f64(), &labels);
    }
}
