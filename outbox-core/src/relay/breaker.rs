//! The outage breaker of an event type: while a transport or a dependency is down, probes instead of attempts.
//!
//! ```text
//!  closed ──a delivery reports an outage──▶ open ──its wait is over──▶ half-open
//!    ▲                                       ▲                          │    │
//!    │                                       └──the probe: outage───────┘    │
//!    └──────────────────────the probe: any other answer──────────────────────┘
//! ```

use tokio::time::Instant;

use super::engine::Engine;
use super::work::Work;
use crate::telemetry::log_line;

/// Where the outage breaker of an event type stands, in one relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Breaker {
    /// Events of the type are delivered.
    #[default]
    Closed,
    /// The outage may be over: one event at a time is delivered as a probe.
    HalfOpen,
    /// A delivery has met an outage: no event of the type is claimed for a while.
    Open,
}

impl Breaker {
    /// The state as a word, for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

/// The state with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Circuit {
    Closed,
    HalfOpen,
    Open { until: Instant },
}

impl Circuit {
    pub(super) fn breaker(self) -> Breaker {
        match self {
            Self::Closed => Breaker::Closed,
            Self::HalfOpen => Breaker::HalfOpen,
            Self::Open { .. } => Breaker::Open,
        }
    }

    pub(super) fn is_open(self, now: Instant) -> bool {
        matches!(self, Self::Open { until } if now < until)
    }
}

impl Engine {
    /// Tells whoever looks what has become of breakers. Probes that fail are no news.
    pub(super) fn note_breakers(&mut self) {
        for (event_type, breaker) in self.types.take_changes() {
            self.metrics.breaker(&event_type, breaker);
            match (self.health.set_breaker(&event_type, breaker), breaker) {
                (Breaker::Closed, Breaker::Open) => {
                    let error = self.types.last_outage(&event_type);
                    tracing::warn!(%event_type, error, "{}", log_line::BREAKER_OPENED);
                }
                (_, Breaker::Closed) => tracing::info!(%event_type, "{}", log_line::BREAKER_CLOSED),
                _ => {}
            }
        }
    }

    /// Hands back what was claimed beside a probe.
    pub(super) fn return_unprobed(&mut self, now: Instant) {
        for item in self.types.take_returned().into_iter().flat_map(Work::into_items) {
            self.finish(item.not_tried(), now);
        }
    }
}
