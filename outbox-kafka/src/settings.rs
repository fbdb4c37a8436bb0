//! How to reach a cluster. What is secret stays secret.

use std::collections::BTreeMap;
use std::fmt;

use outbox_core::ConfigError;
use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

/// Properties whose value may be shown. Any other may hold a password, a token or a key.
const SHOWN: [&str; 12] = [
    "bootstrap.servers",
    "client.id",
    "security.protocol",
    "sasl.mechanisms",
    "sasl.mechanism",
    "sasl.username",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "broker.address.family",
    "compression.type",
];

/// How to reach a cluster: its addresses, and whatever librdkafka takes for TLS, SASL and the rest.
///
/// `Debug` and every error made from it name the properties and show only values that cannot be secret.
///
/// With SASL over TLS: `security.protocol` = `SASL_SSL`, `sasl.mechanisms`, `sasl.username`, `sasl.password`, and
/// `ssl.ca.location` where the system's authorities are not enough. The host name is checked by default. These
/// need the feature `ssl`.
#[derive(Clone)]
pub struct KafkaSettings {
    properties: BTreeMap<String, String>,
}

impl KafkaSettings {
    /// A cluster by the addresses of some of its brokers, `host:port` separated by commas.
    pub fn new(bootstrap_servers: impl Into<String>) -> Self {
        Self {
            properties: BTreeMap::from([("bootstrap.servers".to_owned(), bootstrap_servers.into())]),
        }
    }

    /// Sets a property of librdkafka by its name. What the dispatcher and the source need for their guarantees
    /// cannot be set: they refuse it when they are built.
    #[must_use]
    pub fn with(mut self, property: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(property.into(), value.into());
        self
    }

    /// Refuses properties that are not the user's to set.
    pub(crate) fn check(&self, reserved: &[&str]) -> Result<(), ConfigError> {
        match reserved.iter().find(|name| self.properties.contains_key(**name)) {
            Some(name) => Err(ConfigError::new(
                *name,
                "set",
                "it is not yours to set: the guarantees rest on it",
            )),
            None => Ok(()),
        }
    }

    /// The properties as librdkafka takes them, `ours` on top.
    pub(crate) fn client_config(&self, ours: &[(&str, String)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        // An idle connection that a broker closes is no news; an outage should end soon after the broker is back.
        config
            .set("log.connection.close", "false")
            .set("reconnect.backoff.max.ms", "500");
        for (name, value) in &self.properties {
            config.set(name, value);
        }
        for (name, value) in ours {
            config.set(*name, value);
        }
        config
    }

    /// What librdkafka said about the settings, without secrets.
    pub(crate) fn refused(&self, error: &KafkaError) -> ConfigError {
        match error {
            KafkaError::ClientConfig(_, why, name, value) => {
                let shown = SHOWN.contains(&name.as_str()) || !self.properties.contains_key(name);
                let value = if shown { value } else { "<not shown>" };
                ConfigError::new(name, value, self.redact(why))
            }
            other => ConfigError::new("the Kafka client", "refused", self.redact(&other.to_string())),
        }
    }

    /// A text of librdkafka with every secret value taken out.
    pub(crate) fn redact(&self, text: &str) -> String {
        let secrets = self
            .properties
            .iter()
            .filter(|(name, value)| !is_shown(name) && value.len() >= 4 && !is_harmless(name, value));
        secrets.fold(text.to_owned(), |text, (_, secret)| {
            text.replace(secret, "<not shown>")
        })
    }
}

/// A number or a yes or no, of a property that does not sound like a secret: such a value is in every other text.
fn is_harmless(name: &str, value: &str) -> bool {
    const SECRETIVE: [&str; 6] = ["password", "secret", "token", "key", "sasl", "ssl"];
    let plain = matches!(value, "true" | "false") || value.bytes().all(|byte| byte.is_ascii_digit());
    plain && !SECRETIVE.iter().any(|word| name.contains(word))
}

fn is_shown(name: &str) -> bool {
    SHOWN.contains(&name)
}

impl fmt::Debug for KafkaSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (name, value) in &self.properties {
            let value = if is_shown(name) { value } else { "<not shown>" };
            map.entry(name, &value);
        }
        map.finish()
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::producer::BaseProducer;

    use super::*;

    fn secretive() -> KafkaSettings {
        KafkaSettings::new("127.0.0.1:9")
            .with("sasl.password", "s3cret-word")
            .with("ssl.key.pem", "s3cret-key")
            .with("client.id", "shop")
    }

    #[test]
    fn debug_shows_what_was_set_but_no_secret() {
        let text = format!("{:?} {:#?}", secretive(), secretive());

        assert!(!text.contains("s3cret"), "{text}");
        assert!(text.contains("sasl.password") && text.contains("shop"), "{text}");
    }

    #[test]
    fn an_error_about_a_setting_names_it_without_a_secret() {
        let settings = secretive()
            .with("sasl.oauthbearer.config", "s3cret\nword")
            .with("acks", "s3cret-s3cret");

        let error = settings
            .client_config(&[])
            .create::<BaseProducer>()
            .err()
            .unwrap();
        let refusal = settings.refused(&error);

        assert!(!format!("{refusal} {refusal:?}").contains("s3cret"), "{refusal}");
    }

    #[test]
    fn numbers_are_left_in_a_text_unless_they_are_a_password() {
        let settings = KafkaSettings::new("127.0.0.1:9")
            .with("session.timeout.ms", "6000")
            .with("sasl.password", "123456");

        let text = settings.redact("after 6000 ms with 123456");

        assert_eq!(text, "after 6000 ms with <not shown>");
    }

    #[test]
    fn a_reserved_property_is_refused_by_name() {
        let refusal = secretive().with("acks", "1").check(&["acks"]).unwrap_err();

        assert!(refusal.to_string().starts_with("acks is set"), "{refusal}");
    }
}
