//! What can be set about the dispatcher.

use std::time::Duration;

use outbox_core::ConfigError;

use super::instance::InstanceConfig;
use crate::settings::KafkaSettings;

/// What can be set about [`KafkaDispatcher`](super::KafkaDispatcher). Relations are checked when it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DispatcherOptions {
    /// How long the broker may take to acknowledge a record, all retries included; after that the event is pending
    /// again. Two seconds more have to fit into the relay's lease. Defaults to 10 seconds.
    pub delivery_timeout: Duration,
    /// How long a record waits for others to share a request with. Defaults to 2 milliseconds.
    pub linger: Duration,
    /// The most bytes of a request to one partition, before compression. Lowered by itself to what a topic takes.
    /// Defaults to 500,000.
    pub batch_bytes_max: usize,
    /// The most bytes of one record; larger ones are rejected without asking the broker. Defaults to 10 MB: the
    /// topic's own limit counts, and the broker applies it.
    pub message_bytes_max: usize,
    /// The most records that wait in the client; further ones wait in line, and a transaction has no more than that.
    /// Defaults to 100,000.
    pub queue_messages_max: usize,
}

impl Default for DispatcherOptions {
    fn default() -> Self {
        Self {
            delivery_timeout: Duration::from_secs(10),
            linger: Duration::from_millis(2),
            batch_bytes_max: 500_000,
            message_bytes_max: 10_000_000,
            queue_messages_max: 100_000,
        }
    }
}

impl DispatcherOptions {
    /// Sets how long the broker may take to acknowledge a record.
    #[must_use]
    pub const fn with_delivery_timeout(mut self, timeout: Duration) -> Self {
        self.delivery_timeout = timeout;
        self
    }

    /// Sets how long a record waits for others.
    #[must_use]
    pub const fn with_linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// Sets the most bytes of a request to one partition.
    #[must_use]
    pub const fn with_batch_bytes_max(mut self, bytes: usize) -> Self {
        self.batch_bytes_max = bytes;
        self
    }

    /// Sets the most bytes of one record.
    #[must_use]
    pub const fn with_message_bytes_max(mut self, bytes: usize) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    /// Sets the most records that wait in the client.
    #[must_use]
    pub const fn with_queue_messages_max(mut self, messages: usize) -> Self {
        self.queue_messages_max = messages;
        self
    }

    pub(super) fn instance_config(&self, settings: &KafkaSettings) -> Result<InstanceConfig, ConfigError> {
        if self.delivery_timeout < Duration::from_secs(1) || self.delivery_timeout > Duration::from_secs(300)
        {
            let right = "it takes 1 second to 5 minutes";
            return Err(ConfigError::new(
                "delivery_timeout",
                format!("{:?}", self.delivery_timeout),
                right,
            ));
        }
        if self.linger > self.delivery_timeout / 4 {
            let right = "it takes at most a quarter of delivery_timeout";
            return Err(ConfigError::new("linger", format!("{:?}", self.linger), right));
        }
        Ok(InstanceConfig {
            settings: settings.clone(),
            delivery_timeout: self.delivery_timeout,
            linger: self.linger,
            batch_bytes_max: self.batch_bytes_max,
            message_bytes_max: self.message_bytes_max,
            queue_messages_max: self.queue_messages_max,
        })
    }
}
