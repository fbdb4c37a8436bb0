//! From a record to an event. What comes from a topic may have been written by anybody.

use std::collections::BTreeMap;

use jiff::Timestamp;
use outbox_core::{Envelope, EventId, EventType, Headers, Payload, TextError, Undecodable};

use super::mapping::read_name;
use super::{IncomingRecord, RecordLimits, UnreadableHeaders, cloudevents, plain, structured};

pub(super) fn undecodable(reason: impl Into<String>, event_type: Option<EventType>) -> Undecodable {
    Undecodable {
        reason: reason.into(),
        event_type,
    }
}

/// Reads records of every format that [`RecordMapping`](super::RecordMapping) writes, and CloudEvents of others.
///
/// The format is told by the headers: a `content-type` of CloudEvents means structured mode, `ce_specversion` means
/// binary mode, `outbox-id` means plain. Of headers with the same name the last one counts, as everywhere in Kafka.
/// Attributes of CloudEvents that an event has no place for become headers `ce_…`. Their `id` has to be a UUID, as the
/// ids of events are, though CloudEvents allow any text: a record with another is [`Undecodable`].
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordReader {
    limits: RecordLimits,
    unreadable: UnreadableHeaders,
}

impl RecordReader {
    /// Reads within the default limits, and refuses headers that are no text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how much of a record is taken.
    #[must_use]
    pub const fn with_limits(mut self, limits: RecordLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets what becomes of headers that are no text. Defaults to [`UnreadableHeaders::Refuse`].
    #[must_use]
    pub const fn with_unreadable_headers(mut self, unreadable: UnreadableHeaders) -> Self {
        self.unreadable = unreadable;
        self
    }

    /// The event that a record is.
    ///
    /// # Errors
    /// [`Undecodable`] names what is missing, too long or not what it should be; never a value.
    pub fn envelope(&self, record: &IncomingRecord<'_>) -> Result<Envelope, Undecodable> {
        let fail = |reason: String| undecodable(reason, None);
        let headers = self.texts(record).map_err(fail)?;
        let value = self.value(record).map_err(fail)?;
        let attributes = Attributes {
            texts: &headers,
            timestamp_ms: record.timestamp_ms,
        };
        let content_type = headers.get("content-type").copied().unwrap_or_default();
        let mut envelope = if content_type.starts_with("application/cloudevents") {
            structured::read(content_type, value, record.timestamp_ms, &self.limits)?
        } else if headers.contains_key(cloudevents::SPECVERSION) {
            cloudevents::read(&attributes, json(value).map_err(fail)?)?
        } else if headers.contains_key(plain::ID) {
            plain::read(&attributes, json(value).map_err(fail)?)?
        } else {
            let reason =
                "it has neither the header outbox-id nor ce_specversion, nor a content-type of CloudEvents";
            return Err(undecodable(reason, None));
        };
        let own = headers
            .iter()
            .filter_map(|(name, value)| Some((read_name(name)?, *value)));
        envelope
            .headers
            .extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Ok(envelope)
    }

    /// The headers that are texts, within the limits.
    fn texts<'a>(&self, record: &IncomingRecord<'a>) -> Result<BTreeMap<&'a str, &'a str>, String> {
        let limits = &self.limits;
        let own = record
            .headers
            .iter()
            .filter(|(name, _)| read_name(name).is_none());
        let own = own.count();
        limits.check_count("headers", own, record.headers.len() - own)?;
        let mut texts = BTreeMap::new();
        for (name, value) in record.headers {
            if name.len() > limits.header_name_bytes_max {
                let (bytes, most) = (name.len(), limits.header_name_bytes_max);
                return Err(format!(
                    "a header's name has {bytes} bytes, at most {most} are taken"
                ));
            }
            let bytes = value.map_or(0, <[u8]>::len);
            if bytes > limits.header_value_bytes_max {
                let most = limits.header_value_bytes_max;
                return Err(format!(
                    "the header {name:?} has {bytes} bytes, at most {most} are taken"
                ));
            }
            let what = match value.map(std::str::from_utf8) {
                Some(Ok(text)) => {
                    texts.insert(*name, text);
                    continue;
                }
                Some(Err(_)) => "no text",
                None => "null",
            };
            let foreign = read_name(name).is_some();
            if !foreign || self.unreadable == UnreadableHeaders::Refuse {
                return Err(format!("the header {name:?} is {what}"));
            }
        }
        Ok(texts)
    }

    fn value<'a>(&self, record: &IncomingRecord<'a>) -> Result<&'a str, String> {
        let value = record.value.ok_or("its value is null")?;
        let (bytes, most) = (value.len(), self.limits.value_bytes_max);
        if bytes > most {
            return Err(format!("its value has {bytes} bytes, at most {most} are taken"));
        }
        std::str::from_utf8(value)
            .map_err(|error| format!("its value is no UTF-8 from byte {}", error.valid_up_to()))
    }
}

/// Takes a value that is JSON.
fn json(value: &str) -> Result<Payload, String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(value) {
        Ok(_) => Ok(Payload::from_json(value)),
        Err(error) => Err(format!(
            "its value is no JSON (line {}, column {})",
            error.line(),
            error.column()
        )),
    }
}

/// The attributes of an event by name, and what is known when one is missing.
pub(super) struct Attributes<'a> {
    pub(super) texts: &'a BTreeMap<&'a str, &'a str>,
    pub(super) timestamp_ms: Option<i64>,
}

impl Attributes<'_> {
    pub(super) fn event_type(&self, name: &str) -> Result<EventType, Undecodable> {
        let event_type = self.name(name).map_err(|reason| undecodable(reason, None))?;
        event_type.ok_or_else(|| undecodable(format!("{name} is missing"), None))
    }

    pub(super) fn id(&self, name: &str) -> Result<EventId, String> {
        let text = self.texts.get(name).ok_or(format!("{name} is missing"))?;
        text.parse().map_err(|_| format!("{name} is no UUID"))
    }

    /// When the event was published; the record's own time if nothing is said.
    pub(super) fn created_at(&self, name: &str) -> Result<Timestamp, String> {
        if let Some(text) = self.texts.get(name) {
            return text.parse().map_err(|_| format!("{name} is no instant"));
        }
        let own = self
            .timestamp_ms
            .and_then(|ms| Timestamp::from_millisecond(ms).ok());
        own.ok_or(format!(
            "{name} is missing, and the record has no time of its own"
        ))
    }

    pub(super) fn name<T>(&self, name: &str) -> Result<Option<T>, String>
    where
        T: for<'t> TryFrom<&'t str, Error = TextError>,
    {
        let text = self.texts.get(name).copied();
        text.map(|text| T::try_from(text).map_err(|error| format!("{name}: {error}")))
            .transpose()
    }

    /// Attributes other than these, as headers of the event.
    pub(super) fn further(&self, prefix: &str, known: &[&str]) -> Headers {
        let further = self
            .texts
            .iter()
            .filter(|(name, _)| name.starts_with(prefix) && !known.contains(name));
        further
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }
}
