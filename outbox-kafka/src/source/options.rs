//! What can be set about the source.

use std::time::Duration;

use outbox_core::ConfigError;

use crate::{RecordReader, TopicName};

/// Where records go that have failed for good, or cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadLetters {
    /// To this topic, with their key, value and headers, and their coordinates and the reason in headers
    /// `outbox-dead-…`. The record's timestamp is that of the letter. Such a record can be published to its topic again
    /// by any tool: it is read as the same event.
    ///
    /// The topic's `max.message.bytes` should be some kilobytes more than that of the topics that are read, for these
    /// headers. A record that is too large all the same is written without its value (and if need be without key and
    /// headers of its own), with the value's size in `outbox-dead-value-bytes`.
    Topic(TopicName),
    /// Nowhere. They are logged, and passed over.
    Drop,
}

/// What can be set about [`KafkaSource`](super::KafkaSource).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SourceOptions {
    /// How records are read, and how much of them.
    pub reader: RecordReader,
    /// The most unfinished records of one partition that are held; reading of the partition pauses there. It has to
    /// be more than the relay takes at a time, or keys wait for each other. Defaults to 1,000.
    pub buffered_events_max: usize,
    /// The most bytes of unfinished records of one partition, of their keys, values and headers, and 64 for each header
    /// besides; the record that reaches it is still taken. The client fetches ahead besides, by `queued.max.messages.kbytes` (64 MiB over all partitions). Defaults to 8 MiB.
    pub buffered_bytes_max: u64,
    /// How far a partition may be read past its oldest unfinished record. What is finished beyond that record is
    /// handled again after a crash. Defaults to 10,000 records.
    pub window_max: usize,
    /// How often finished offsets are committed. Defaults to half a second.
    pub commit_interval: Duration,
    /// After so long without progress on a partition that has more to read, or whose reading does not begin, the consumer
    /// is made anew. Defaults to one minute.
    pub stall_timeout: Duration,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            reader: RecordReader::new(),
            buffered_events_max: 1000,
            buffered_bytes_max: 8 << 20,
            window_max: 10_000,
            commit_interval: Duration::from_millis(500),
            stall_timeout: Duration::from_secs(60),
        }
    }
}

impl SourceOptions {
    /// Sets how records are read.
    #[must_use]
    pub const fn with_reader(mut self, reader: RecordReader) -> Self {
        self.reader = reader;
        self
    }

    /// Sets the most unfinished records of one partition.
    #[must_use]
    pub const fn with_buffered_events_max(mut self, events: usize) -> Self {
        self.buffered_events_max = events;
        self
    }

    /// Sets the most bytes of unfinished records of one partition.
    #[must_use]
    pub const fn with_buffered_bytes_max(mut self, bytes: u64) -> Self {
        self.buffered_bytes_max = bytes;
        self
    }

    /// Sets how far a partition may be read past its oldest unfinished record.
    #[must_use]
    pub const fn with_window_max(mut self, records: usize) -> Self {
        self.window_max = records;
        self
    }

    /// Sets how often finished offsets are committed.
    #[must_use]
    pub const fn with_commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval = interval;
        self
    }

    /// Sets after how long without progress the consumer is made anew.
    #[must_use]
    pub const fn with_stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let refused =
            |setting: &str, value: String, right: &str| Err(ConfigError::new(setting, value, right));
        if self.buffered_events_max == 0 || self.buffered_bytes_max == 0 {
            return refused(
                "buffered_events_max, buffered_bytes_max",
                "0".into(),
                "they take at least 1",
            );
        }
        if self.window_max < self.buffered_events_max {
            let right = "it takes at least buffered_events_max";
            return refused("window_max", self.window_max.to_string(), right);
        }
        if self.stall_timeout < Duration::from_secs(10) {
            let right = "it takes at least 10 seconds: the client reports every five";
            return refused("stall_timeout", format!("{:?}", self.stall_timeout), right);
        }
        Ok(())
    }
}
