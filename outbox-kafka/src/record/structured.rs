//! CloudEvents 1.0, structured mode: one JSON object.

use std::collections::BTreeMap;

use outbox_core::{Envelope, Payload, Undecodable};
use serde_json::value::RawValue;

use super::read::{Attributes, undecodable};
use super::{CloudEvents, RecordLimits, Unmappable, cloudevents};

const CONTENT_TYPE: &str = "application/cloudevents+json; charset=UTF-8";

type Written = (String, Vec<(String, String)>);

pub(super) fn write(
    envelope: &Envelope,
    settings: &CloudEvents,
    key: Option<&str>,
) -> Result<Written, Unmappable> {
    let Ok(data) = serde_json::from_str::<&RawValue>(envelope.payload.as_str()) else {
        return Err(Unmappable::new(
            "CloudEvents in structured mode want JSON, and the payload is none",
        ));
    };
    let mut object = serde_json::Map::new();
    cloudevents::each_attribute(envelope, settings, key, |name, value| {
        object.insert(name.to_owned(), value.into());
    });
    object.insert("datacontenttype".to_owned(), "application/json".into());
    // The payload is appended as it is: through a value, numbers and the order of fields would change.
    let mut text = serde_json::Value::Object(object).to_string();
    text.pop();
    text.push_str(",\"data\":");
    text.push_str(data.get());
    text.push('}');
    Ok((text, vec![("content-type".to_owned(), CONTENT_TYPE.to_owned())]))
}

pub(super) fn read(
    content_type: &str,
    value: &str,
    timestamp_ms: Option<i64>,
    limits: &RecordLimits,
) -> Result<Envelope, Undecodable> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if media_type != "application/cloudevents+json" {
        return Err(undecodable(
            "of CloudEvents only single JSON objects are read",
            None,
        ));
    }
    let object: BTreeMap<String, &RawValue> = serde_json::from_str(value).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        undecodable(
            format!("its value is no JSON object (line {line}, column {column})"),
            None,
        )
    })?;
    let attributes = attributes(&object, limits)?;
    let texts = attributes
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let attributes = Attributes {
        texts: &texts,
        timestamp_ms,
    };
    match (object.get("data"), object.contains_key("data_base64")) {
        (Some(data), _) => cloudevents::read(&attributes, Payload::from_json(data.get())),
        (None, true) => Err(undecodable("its data is not JSON but base64", None)),
        (None, false) => Err(undecodable("it has no data", None)),
    }
}

/// All but the data, named as in headers. An attribute is a text, a number or a boolean; null means absent.
fn attributes(
    object: &BTreeMap<String, &RawValue>,
    limits: &RecordLimits,
) -> Result<BTreeMap<String, String>, Undecodable> {
    let mut attributes = BTreeMap::new();
    let count = limits.check_count("attributes", object.len(), 0);
    count.map_err(|reason| undecodable(reason, None))?;
    for (name, raw) in object {
        if name == "data" || name == "data_base64" {
            continue;
        }
        if name.len() > limits.header_name_bytes_max || raw.get().len() > limits.header_value_bytes_max {
            return Err(undecodable(
                "the name or value of an attribute is longer than a header may be",
                None,
            ));
        }
        let value = match serde_json::from_str(raw.get()) {
            Ok(serde_json::Value::String(text)) => text,
            Ok(serde_json::Value::Null) => continue,
            Ok(value @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_))) => value.to_string(),
            _ => return Err(undecodable(format!("its attribute {name:?} is no text"), None)),
        };
        attributes.insert(format!("ce_{name}"), value);
    }
    Ok(attributes)
}
