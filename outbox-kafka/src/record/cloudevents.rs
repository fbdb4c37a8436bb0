//! CloudEvents 1.0, binary mode: attributes in headers.

use std::fmt::Display;

use outbox_core::{Envelope, Payload, Undecodable, header};

use super::CloudEvents;
use super::read::{Attributes, undecodable};

pub(super) const SPECVERSION: &str = "ce_specversion";

/// Attributes that an event has a place for, or that say nothing about it. Whatever else comes becomes a header.
const KNOWN: [&str; 13] = [
    SPECVERSION,
    "ce_id",
    "ce_type",
    "ce_source",
    "ce_time",
    "ce_subject",
    "ce_datacontenttype",
    "ce_aggregatetype",
    "ce_orderingkey",
    "ce_tenantid",
    "ce_partitionkey",
    "ce_traceparent",
    "ce_tracestate",
];

/// Name and value of each attribute, without the prefix that a header has.
pub(super) fn each_attribute(
    envelope: &Envelope,
    settings: &CloudEvents,
    key: Option<&str>,
    mut attribute: impl FnMut(&str, &str),
) {
    let mut put = |name: &str, value: Option<&dyn Display>| {
        if let Some(value) = value {
            attribute(name, &value.to_string());
        }
    };
    put("specversion", Some(&"1.0"));
    put("id", Some(&envelope.id));
    put("source", Some(&settings.source()));
    put("type", Some(&envelope.event_type));
    put("time", Some(&envelope.created_at));
    put(
        "subject",
        envelope.aggregate_id.as_ref().map(|id| id as &dyn Display),
    );
    put(
        "aggregatetype",
        envelope.aggregate_type.as_ref().map(|name| name as &dyn Display),
    );
    put(
        "orderingkey",
        envelope.ordering_key.as_ref().map(|key| key as &dyn Display),
    );
    put("partitionkey", key.as_ref().map(|key| key as &dyn Display));
    if !envelope.tenant_id.is_none() {
        put("tenantid", Some(&envelope.tenant_id));
    }
}

pub(super) fn attributes(
    envelope: &Envelope,
    settings: &CloudEvents,
    key: Option<&str>,
) -> Vec<(String, String)> {
    let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
    each_attribute(envelope, settings, key, |name, value| {
        headers.push((format!("ce_{name}"), value.to_owned()));
    });
    headers
}

/// Reads attributes of CloudEvents, named as in headers.
pub(super) fn read(attributes: &Attributes<'_>, payload: Payload) -> Result<Envelope, Undecodable> {
    let version = attributes.texts.get(SPECVERSION).copied().unwrap_or_default();
    if !version.starts_with("1.") {
        return Err(undecodable("its version of CloudEvents is not 1", None));
    }
    let event_type = attributes.event_type("ce_type")?;
    let read = || {
        let created_at = attributes.created_at("ce_time")?;
        let mut envelope = Envelope::new(attributes.id("ce_id")?, event_type.clone(), payload, created_at);
        envelope.aggregate_type = attributes.name("ce_aggregatetype")?;
        envelope.aggregate_id = attributes.name("ce_subject")?;
        envelope.ordering_key = attributes.name("ce_orderingkey")?;
        envelope.tenant_id = attributes.name("ce_tenantid")?.unwrap_or_default();
        envelope.headers = attributes.further("ce_", &KNOWN);
        for (name, header) in [
            ("ce_traceparent", header::TRACEPARENT),
            ("ce_tracestate", header::TRACESTATE),
        ] {
            if let Some(value) = attributes.texts.get(name) {
                envelope.headers.insert(header.to_owned(), (*value).to_owned());
            }
        }
        Ok(envelope)
    };
    read().map_err(|reason: String| undecodable(reason, Some(event_type.clone())))
}
