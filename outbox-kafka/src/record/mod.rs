//! What an event looks like as a record, and which event a record is. Pure: no client, no clock.

mod cloudevents;
mod limits;
mod mapping;
mod plain;
mod read;
mod structured;
mod topic;

pub use limits::{RecordLimits, UnreadableHeaders};
pub use mapping::{CloudEvents, Format, RecordMapping, Unmappable};
pub use read::RecordReader;
pub use topic::{TopicName, TopicRule};

/// A record to be sent.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutgoingRecord {
    /// Where it goes.
    pub topic: TopicName,
    /// Records of one key stay on one partition, in order. `None`: any partition.
    pub key: Option<String>,
    /// The content.
    pub value: String,
    /// What travels beside it, in this order.
    pub headers: Vec<(String, String)>,
    /// When the event was published, in milliseconds since 1970. The dispatchers write the time of writing instead, from
    /// which a topic's retention counts; every format says when the event was published.
    pub timestamp_ms: i64,
}

impl OutgoingRecord {
    /// How many bytes it takes in a batch that is not compressed: an upper bound.
    #[must_use]
    pub fn size(&self) -> usize {
        // Each record has its length, deltas and counts in front; each header and field a length. Varints of five bytes.
        const FRAME: usize = 30;
        const FIELD: usize = 10;
        let headers: usize = self
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len() + FIELD)
            .sum();
        FRAME + self.key.as_ref().map_or(0, String::len) + self.value.len() + headers
    }
}

impl std::fmt::Debug for OutgoingRecord {
    /// Leaves out the value and the headers' values: payloads never reach logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutgoingRecord")
            .field("topic", &self.topic)
            .field("key", &self.key)
            .field("value", &format_args!("{} bytes", self.value.len()))
            .field(
                "headers",
                &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            )
            .field("timestamp_ms", &self.timestamp_ms)
            .finish()
    }
}

/// A record as it was received: nothing in it is trusted.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct IncomingRecord<'a> {
    /// The content; `None` is Kafka's tombstone.
    pub value: Option<&'a [u8]>,
    /// What travels beside it, names perhaps more than once.
    pub headers: &'a [(&'a str, Option<&'a [u8]>)],
    /// The record's own time, in milliseconds since 1970, if it has one.
    pub timestamp_ms: Option<i64>,
}

impl<'a> IncomingRecord<'a> {
    /// A record with these parts.
    #[must_use]
    pub const fn new(value: Option<&'a [u8]>, headers: &'a [(&'a str, Option<&'a [u8]>)]) -> Self {
        Self {
            value,
            headers,
            timestamp_ms: None,
        }
    }

    /// Sets the record's own time.
    #[must_use]
    pub const fn with_timestamp_ms(mut self, timestamp_ms: Option<i64>) -> Self {
        self.timestamp_ms = timestamp_ms;
        self
    }
}

impl std::fmt::Debug for IncomingRecord<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IncomingRecord")
            .field("value", &self.value.map(<[u8]>::len))
            .field(
                "headers",
                &self.headers.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            )
            .finish()
    }
}
