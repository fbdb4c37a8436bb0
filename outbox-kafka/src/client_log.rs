//! What librdkafka says, to `tracing`, without secrets.

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use crate::settings::KafkaSettings;

/// Takes the log lines and errors of a client.
#[derive(Debug, Clone)]
pub(crate) struct ClientLog {
    settings: KafkaSettings,
    /// Which client speaks.
    client: &'static str,
}

impl ClientLog {
    pub(crate) fn new(settings: &KafkaSettings, client: &'static str) -> Self {
        Self {
            settings: settings.clone(),
            client,
        }
    }
}

impl ClientContext for ClientLog {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        use RDKafkaLogLevel as Level;
        let (client, line) = (self.client, self.settings.redact(line));
        match level {
            // librdkafka repeats its trouble for as long as it lasts; what it means for events is reported by us, once.
            Level::Emerg | Level::Alert | Level::Critical => {
                tracing::warn!(target: "outbox_kafka::librdkafka", client, facility, "{line}");
            }
            Level::Error | Level::Warning | Level::Notice | Level::Info => {
                tracing::debug!(target: "outbox_kafka::librdkafka", client, facility, "{line}");
            }
            Level::Debug => tracing::trace!(target: "outbox_kafka::librdkafka", client, facility, "{line}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = self.settings.redact(reason);
        if let Some(RDKafkaErrorCode::Authentication | RDKafkaErrorCode::SSL) = error.rdkafka_error_code() {
            tracing::warn!(client = self.client, %reason, "kafka refuses the client");
        } else {
            tracing::debug!(client = self.client, %reason, "kafka client error");
        }
    }
}
