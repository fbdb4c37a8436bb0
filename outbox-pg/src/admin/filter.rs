//! Which events an operator means.

use std::time::Duration;

use outbox_core::{EventId, EventType, OrderingKey, Position, SourceError, TenantId};
use serde_json::{Map, Value, json};

const EMPTY_ERROR: &str = "the filter asks for an empty part of the error, which every error has";

/// Failed events to redrive or to discard. Conditions add up; without any it means all that were not discarded.
///
/// ```
/// use std::time::Duration;
/// use outbox_core::EventType;
/// use outbox_pg::admin::FailedFilter;
///
/// # fn main() -> Result<(), outbox_core::TextError> {
/// let refused_cards = FailedFilter::all()
///     .of_type(EventType::new("PaymentRequested")?)
///     .with_error("gateway timeout")
///     .failed_within(Duration::from_secs(3600));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FailedFilter {
    ids: Option<Vec<EventId>>,
    event_type: Option<EventType>,
    tenant_id: Option<TenantId>,
    ordering_key: Option<OrderingKey>,
    error: Option<String>,
    older: Option<Duration>,
    newer: Option<Duration>,
}

impl FailedFilter {
    /// Every failed event that was not discarded.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// These events. Only by id can a discarded event be redriven.
    #[must_use]
    pub fn ids(ids: impl IntoIterator<Item = EventId>) -> Self {
        Self {
            ids: Some(ids.into_iter().collect()),
            ..Self::default()
        }
    }

    /// Of this type only.
    #[must_use]
    pub fn of_type(mut self, event_type: EventType) -> Self {
        self.event_type = Some(event_type);
        self
    }

    /// Of this tenant only.
    #[must_use]
    pub fn of_tenant(mut self, tenant_id: TenantId) -> Self {
        self.tenant_id = Some(tenant_id);
        self
    }

    /// With this ordering key only.
    #[must_use]
    pub fn with_key(mut self, ordering_key: OrderingKey) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// Whose error contains this text, upper and lower case alike. An empty one is refused when the filter is used: every
    /// error contains it.
    #[must_use]
    pub fn with_error(mut self, part: impl Into<String>) -> Self {
        self.error = Some(part.into());
        self
    }

    /// That failed at least so long ago, by the database's clock.
    #[must_use]
    pub fn failed_before(mut self, age: Duration) -> Self {
        self.older = Some(age);
        self
    }

    /// That failed no longer ago than this, by the database's clock.
    #[must_use]
    pub fn failed_within(mut self, age: Duration) -> Self {
        self.newer = Some(age);
        self
    }

    /// As the SQL functions take it, which would refuse it without saying why: their words may quote data.
    pub(super) fn to_json(&self, operation: &'static str) -> Result<String, SourceError> {
        if self.error.as_deref() == Some("") {
            return Err(SourceError::refused(operation, EMPTY_ERROR));
        }
        let mut filter = Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                filter.insert(name.to_owned(), value);
            }
        };
        add("ids", self.ids.as_ref().map(|ids| json!(ids)));
        add(
            "event_type",
            self.event_type.as_ref().map(|name| json!(name.as_str())),
        );
        add("tenant_id", self.tenant_id.as_ref().map(|id| json!(id.as_str())));
        add(
            "ordering_key",
            self.ordering_key.as_ref().map(|key| json!(key.as_str())),
        );
        add("error", self.error.as_ref().map(|part| json!(part)));
        add("older_ms", self.older.map(|age| json!(age.as_millis() as f64)));
        add("newer_ms", self.newer.map(|age| json!(age.as_millis() as f64)));
        Ok(Value::Object(filter).to_string())
    }
}

/// One of the three statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Not delivered yet.
    Pending,
    /// Delivered.
    Completed,
    /// Given up: a dead letter.
    Failed,
}

impl Status {
    /// As it stands in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        match text {
            "pending" => Self::Pending,
            "completed" => Self::Completed,
            _ => Self::Failed,
        }
    }
}

/// Where a pending event waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// It has met no obstacle yet.
    Fresh,
    /// It is not due yet, and blocks nobody until then.
    Scheduled,
    /// It was tried, released, redriven or lost, and is due at an instant.
    Waiting,
    /// It waits behind another event of its key, or its key is blocked.
    Held,
    /// Its type is paused, or has no room.
    Barred,
}

impl Class {
    /// As it stands in the table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Scheduled => "scheduled",
            Self::Waiting => "waiting",
            Self::Held => "held",
            Self::Barred => "barred",
        }
    }

    pub(super) fn parse(text: &str) -> Self {
        match text {
            "fresh" => Self::Fresh,
            "scheduled" => Self::Scheduled,
            "waiting" => Self::Waiting,
            "barred" => Self::Barred,
            _ => Self::Held,
        }
    }
}

/// Events to list: those of one status, in publish order, page by page.
///
/// Pending and failed events are found by an index. Completed ones have none: on a large table that takes a scan.
#[derive(Debug, Clone)]
pub struct ListFilter {
    pub(super) status: Status,
    pub(super) class: Option<Class>,
    pub(super) event_type: Option<EventType>,
    pub(super) tenant_id: Option<TenantId>,
    pub(super) ordering_key: Option<OrderingKey>,
    pub(super) error: Option<String>,
    pub(super) after: i64,
    pub(super) limit: u32,
}

impl ListFilter {
    /// Events of that status, 100 a page.
    #[must_use]
    pub fn new(status: Status) -> Self {
        Self {
            status,
            class: None,
            event_type: None,
            tenant_id: None,
            ordering_key: None,
            error: None,
            after: i64::MIN,
            limit: 100,
        }
    }

    /// Of this class only.
    #[must_use]
    pub fn in_class(mut self, class: Class) -> Self {
        self.class = Some(class);
        self
    }

    /// Of this type only.
    #[must_use]
    pub fn of_type(mut self, event_type: EventType) -> Self {
        self.event_type = Some(event_type);
        self
    }

    /// Of this tenant only.
    #[must_use]
    pub fn of_tenant(mut self, tenant_id: TenantId) -> Self {
        self.tenant_id = Some(tenant_id);
        self
    }

    /// With this ordering key only.
    #[must_use]
    pub fn with_key(mut self, ordering_key: OrderingKey) -> Self {
        self.ordering_key = Some(ordering_key);
        self
    }

    /// Whose error contains this text, upper and lower case alike.
    #[must_use]
    pub fn with_error(mut self, part: impl Into<String>) -> Self {
        self.error = Some(part.into());
        self
    }

    /// After this position: that of the last event of the page before.
    #[must_use]
    pub fn after(mut self, position: Position) -> Self {
        self.after = position.0;
        self
    }

    /// At most so many.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }
}
