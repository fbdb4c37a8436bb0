//! From an event to a record.

use outbox_core::Envelope;

use super::{OutgoingRecord, TopicRule, cloudevents, plain, structured};

/// Why an event cannot become a record. No try will help: it is the event, or the rules, that must change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event cannot become a record: {reason}")]
pub struct Unmappable {
    reason: String,
}

impl Unmappable {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
        }
    }
}

/// What the CloudEvents attributes need that no event has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudEvents {
    source: String,
}

impl CloudEvents {
    /// `source` is a URI reference that names the publishing system, such as `/shop/orders`. Source and id
    /// together are what consumers take for the identity of an event.
    ///
    /// # Errors
    /// [`Unmappable`] when it is empty.
    pub fn new(source: impl Into<String>) -> Result<Self, Unmappable> {
        let source = source.into();
        if source.is_empty() {
            return Err(Unmappable::new("CloudEvents want a source that is not empty"));
        }
        Ok(Self { source })
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }
}

/// The form of a record. Readers tell the forms apart by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Format {
    /// The payload as it was stored, byte for byte; what belongs to the event in headers `outbox-…`.
    #[default]
    Plain,
    /// CloudEvents 1.0, binary mode: the payload as it was stored, the attributes in headers `ce_…`.
    CloudEventsBinary(CloudEvents),
    /// CloudEvents 1.0, structured mode: attributes and payload in one JSON object. The payload has to be JSON;
    /// white space around it is lost.
    CloudEventsStructured(CloudEvents),
}

/// How events become records: topic, key, headers and value.
///
/// The key is the ordering key, else the aggregate id, else there is none. Headers of the event keep their names,
/// except those that begin with `outbox-` or `ce_`, or are `content-type`: these are written with `outbox-header-`
/// in front, and read back without it.
#[derive(Debug, Clone)]
pub struct RecordMapping {
    topic: TopicRule,
    format: Format,
}

impl RecordMapping {
    /// Records in the plain format, topics by this rule.
    #[must_use]
    pub const fn new(topic: TopicRule) -> Self {
        Self {
            topic,
            format: Format::Plain,
        }
    }

    /// Sets the format. Defaults to [`Format::Plain`].
    #[must_use]
    pub fn with_format(mut self, format: Format) -> Self {
        self.format = format;
        self
    }

    /// The record of an event. The same event always gives the same record.
    ///
    /// # Errors
    /// [`Unmappable`] when the topic rule has no topic for it, a header's name is empty or holds a NUL, or the
    /// format wants JSON and the payload is none.
    pub fn record(&self, envelope: &Envelope) -> Result<OutgoingRecord, Unmappable> {
        let topic = self.topic.topic(envelope)?;
        let key = record_key(envelope);
        let (value, mut headers) = match &self.format {
            Format::Plain => (envelope.payload.as_str().to_owned(), plain::attributes(envelope)),
            Format::CloudEventsBinary(settings) => {
                let headers = cloudevents::attributes(envelope, settings, key);
                (envelope.payload.as_str().to_owned(), headers)
            }
            Format::CloudEventsStructured(settings) => structured::write(envelope, settings, key)?,
        };
        for (name, value) in &envelope.headers {
            if name.is_empty() || name.contains('\0') {
                return Err(Unmappable::new("a header's name is empty or holds a NUL"));
            }
            headers.push((written_name(name), value.clone()));
        }
        Ok(OutgoingRecord {
            topic,
            key: key.map(str::to_owned),
            value,
            headers,
            timestamp_ms: envelope.created_at.as_millisecond(),
        })
    }
}

fn record_key(envelope: &Envelope) -> Option<&str> {
    let ordering_key = envelope.ordering_key.as_ref().map(|key| key.as_str());
    ordering_key.or(envelope.aggregate_id.as_ref().map(|id| id.as_str()))
}

const ESCAPE: &str = "outbox-header-";

/// The name under which a header of the event travels.
fn written_name(name: &str) -> String {
    if name.starts_with("outbox-") || name.starts_with("ce_") || name == "content-type" {
        format!("{ESCAPE}{name}")
    } else {
        name.to_owned()
    }
}

/// The event's header behind a record's header, or `None` if the name is one of our attributes.
pub(super) fn read_name(name: &str) -> Option<&str> {
    match name.strip_prefix(ESCAPE) {
        Some(escaped) => Some(escaped),
        None if name.starts_with("outbox-") || name.starts_with("ce_") || name == "content-type" => None,
        None => Some(name),
    }
}
