//! The plain format: the payload as it is, the rest in headers of our own.

use outbox_core::{Envelope, Payload, Undecodable};

use super::read::{Attributes, undecodable};

pub(super) const ID: &str = "outbox-id";
const EVENT_TYPE: &str = "outbox-event-type";
const AGGREGATE_TYPE: &str = "outbox-aggregate-type";
const AGGREGATE_ID: &str = "outbox-aggregate-id";
const ORDERING_KEY: &str = "outbox-ordering-key";
const TENANT_ID: &str = "outbox-tenant-id";
const CREATED_AT: &str = "outbox-created-at";

pub(super) fn attributes(envelope: &Envelope) -> Vec<(String, String)> {
    let mut headers = Vec::with_capacity(7 + envelope.headers.len());
    let mut push =
        |name: &str, value: &dyn std::fmt::Display| headers.push((name.to_owned(), value.to_string()));
    push(ID, &envelope.id);
    push(EVENT_TYPE, &envelope.event_type);
    push(CREATED_AT, &envelope.created_at);
    if let Some(aggregate_type) = &envelope.aggregate_type {
        push(AGGREGATE_TYPE, aggregate_type);
    }
    if let Some(aggregate_id) = &envelope.aggregate_id {
        push(AGGREGATE_ID, aggregate_id);
    }
    if let Some(ordering_key) = &envelope.ordering_key {
        push(ORDERING_KEY, ordering_key);
    }
    if !envelope.tenant_id.is_none() {
        push(TENANT_ID, &envelope.tenant_id);
    }
    headers
}

/// Reads a record of the plain format. Further headers `outbox-…` are of a later version, and left out.
pub(super) fn read(attributes: &Attributes<'_>, payload: Payload) -> Result<Envelope, Undecodable> {
    let event_type = attributes.event_type(EVENT_TYPE)?;
    let read = || {
        let mut envelope = Envelope::new(
            attributes.id(ID)?,
            event_type.clone(),
            payload,
            attributes.created_at(CREATED_AT)?,
        );
        envelope.aggregate_type = attributes.name(AGGREGATE_TYPE)?;
        envelope.aggregate_id = attributes.name(AGGREGATE_ID)?;
        envelope.ordering_key = attributes.name(ORDERING_KEY)?;
        envelope.tenant_id = attributes.name(TENANT_ID)?.unwrap_or_default();
        Ok(envelope)
    };
    read().map_err(|reason: String| undecodable(reason, Some(event_type.clone())))
}
