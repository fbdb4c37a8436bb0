//! The statement that publishes, for whoever can send one.

use std::fmt;
use std::sync::Arc;

use outbox_core::{IntoNewEvent, InvalidEvent, NewEvent, TenantId};

use crate::PgPublisher;
use crate::publisher::{due, headers_json};

/// The INSERT that publishes one event, and its ten parameters, each a text or NULL.
///
/// For drivers without an adapter here: send it in the transaction of the change. The number of rows it affects says
/// whether the event is new: 0 means that its id was there already. It needs no right but to insert.
///
/// Where tenants are isolated the transaction has to have the event's tenant in `app.current_tenant`; an event without a
/// tenant of its own inherits that one. If no event can have it, the statement fails, and the transaction with it.
#[derive(Clone)]
pub struct PublishStatement {
    sql: Arc<str>,
    parameters: [Option<String>; 10],
}

impl PublishStatement {
    /// The statement, with the placeholders `$1` to `$10`.
    #[must_use]
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// What to bind to them, in order.
    #[must_use]
    pub fn parameters(&self) -> &[Option<String>; 10] {
        &self.parameters
    }

    /// Statement and parameters by value.
    #[must_use]
    pub fn into_parts(self) -> (Arc<str>, [Option<String>; 10]) {
        (self.sql, self.parameters)
    }

    pub(crate) fn of(
        sql: Arc<str>,
        event: &NewEvent,
        tenant_id: Option<&TenantId>,
    ) -> Result<Self, InvalidEvent> {
        let headers = headers_json(event)?;
        let (at, after) = due(event.due);
        let text = |text: &dyn AsRef<str>| Some(text.as_ref().to_owned());
        let parameters = [
            Some(event.id.to_string()),
            text(&event.event_type),
            event.aggregate_type.as_ref().and_then(|name| text(name)),
            event.aggregate_id.as_ref().and_then(|id| text(id)),
            event.ordering_key.as_ref().and_then(|key| text(key)),
            tenant_id.and_then(|id| text(id)),
            Some(event.payload.as_str().to_owned()),
            Some(headers),
            at.map(|micros| micros.to_string()),
            after.map(|micros| micros.to_string()),
        ];
        Ok(Self { sql, parameters })
    }
}

// By hand: the parameters hold the payload.
impl fmt::Debug for PublishStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishStatement")
            .field("id", &self.parameters[0])
            .field("event_type", &self.parameters[1])
            .finish_non_exhaustive()
    }
}

impl PgPublisher {
    /// The statement that publishes an event, to be sent by whatever driver the application uses.
    ///
    /// # Errors
    /// [`InvalidEvent`] when the event cannot be stored; nothing was sent.
    pub fn statement(&self, event: impl IntoNewEvent) -> Result<PublishStatement, InvalidEvent> {
        let event = self.ready(event)?;
        PublishStatement::of(self.text.text(), &event, self.tenant_of(&event))
    }
}
