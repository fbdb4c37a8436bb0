//! Which topic an event goes to.

use std::fmt;
use std::sync::Arc;

use outbox_core::Envelope;

use super::Unmappable;

/// The name of a topic: 1 to 249 letters, digits, dots, underscores and hyphens, not `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// The most bytes that Kafka takes.
    pub const LIMIT: usize = 249;

    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`Unmappable`] says what Kafka would not take.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Unmappable> {
        let name = name.as_ref();
        let refused = |why: String| Err(Unmappable::new(format!("{name:?} cannot be a topic: {why}")));
        if name.is_empty() || name == "." || name == ".." {
            return refused("it names nothing".into());
        }
        if name.len() > Self::LIMIT {
            return refused(format!(
                "it has {} bytes, at most {} are taken",
                name.len(),
                Self::LIMIT
            ));
        }
        match name
            .chars()
            .find(|c| !c.is_ascii_alphanumeric() && !".-_".contains(*c))
        {
            Some(c) => refused(format!("{c:?} is not a letter, digit, dot, underscore or hyphen")),
            None => Ok(Self(Arc::from(name))),
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicName({:?})", &*self.0)
    }
}

type TopicFn = dyn Fn(&Envelope) -> String + Send + Sync;

/// How the topic of an event is found.
///
/// Records of one key have an order only within one topic: a rule that spreads the events of one ordering key over
/// several topics gives up the order between those topics.
#[derive(Clone)]
pub struct TopicRule(Rule);

#[derive(Clone)]
enum Rule {
    Fixed(TopicName),
    AggregateType {
        prefix: String,
        otherwise: Option<TopicName>,
    },
    EventType {
        prefix: String,
    },
    Function(Arc<TopicFn>),
}

impl TopicRule {
    /// Every event goes to this topic.
    #[must_use]
    pub const fn fixed(topic: TopicName) -> Self {
        Self(Rule::Fixed(topic))
    }

    /// The topic is `prefix` followed by the aggregate type. Events without one go to `otherwise`, or are refused.
    pub fn by_aggregate_type(prefix: impl Into<String>, otherwise: Option<TopicName>) -> Self {
        Self(Rule::AggregateType {
            prefix: prefix.into(),
            otherwise,
        })
    }

    /// The topic is `prefix` followed by the event type.
    pub fn by_event_type(prefix: impl Into<String>) -> Self {
        Self(Rule::EventType {
            prefix: prefix.into(),
        })
    }

    /// The topic is what `rule` returns. It is called for every try of every event, so it has to be quick and always
    /// say the same.
    pub fn by(rule: impl Fn(&Envelope) -> String + Send + Sync + 'static) -> Self {
        Self(Rule::Function(Arc::new(rule)))
    }

    /// The topic of an event.
    ///
    /// # Errors
    /// [`Unmappable`] when the rule has none for it, or one that Kafka would not take.
    pub fn topic(&self, envelope: &Envelope) -> Result<TopicName, Unmappable> {
        match &self.0 {
            Rule::Fixed(topic) => Ok(topic.clone()),
            Rule::EventType { prefix } => TopicName::new(format!("{prefix}{}", envelope.event_type)),
            Rule::Function(rule) => TopicName::new(rule(envelope)),
            Rule::AggregateType { prefix, otherwise } => match (&envelope.aggregate_type, otherwise) {
                (Some(aggregate), _) => TopicName::new(format!("{prefix}{aggregate}")),
                (None, Some(topic)) => Ok(topic.clone()),
                (None, None) => Err(Unmappable::new(
                    "topics go by aggregate type, and the event has none; name a topic for such events",
                )),
            },
        }
    }
}

impl fmt::Debug for TopicRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::Fixed(topic) => write!(f, "TopicRule(always {topic})"),
            Rule::AggregateType { prefix, otherwise } => {
                write!(f, "TopicRule({prefix}<aggregate type>, otherwise {otherwise:?})")
            }
            Rule::EventType { prefix } => write!(f, "TopicRule({prefix}<event type>)"),
            Rule::Function(_) => write!(f, "TopicRule(by function)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use outbox_core::{AggregateType, EventId, EventType, Payload};

    use super::*;

    fn envelope(event_type: &str, aggregate_type: Option<&str>) -> Envelope {
        let mut envelope = Envelope::new(
            EventId::new(),
            EventType::new(event_type).unwrap(),
            Payload::from_json("{}"),
            Timestamp::UNIX_EPOCH,
        );
        envelope.aggregate_type = aggregate_type.map(|name| AggregateType::new(name).unwrap());
        envelope
    }

    #[test]
    fn a_rule_finds_the_topic() {
        let other = TopicName::new("other").unwrap();
        let order = envelope("OrderPlaced", Some("order"));
        let bare = envelope("Tick", None);
        let cases = [
            (TopicRule::fixed(other.clone()), &order, "other"),
            (TopicRule::by_aggregate_type("shop.", None), &order, "shop.order"),
            (TopicRule::by_aggregate_type("shop.", Some(other)), &bare, "other"),
            (TopicRule::by_event_type(""), &order, "OrderPlaced"),
            (TopicRule::by(|e| format!("x-{}", e.event_type)), &bare, "x-Tick"),
        ];

        for (rule, envelope, topic) in cases {
            assert_eq!(rule.topic(envelope).unwrap().as_str(), topic, "{rule:?}");
        }
    }

    #[test]
    fn what_kafka_would_not_take_as_a_topic_is_refused_with_the_reason() {
        let cases = [
            (
                TopicRule::by_event_type(""),
                envelope("order placed", None),
                "' ' is not a letter",
            ),
            (
                TopicRule::by_event_type(""),
                envelope("größe", None),
                "'ö' is not a letter",
            ),
            (
                TopicRule::by_aggregate_type("x.", None),
                envelope("a", None),
                "has none",
            ),
            (
                TopicRule::by(|_| "..".into()),
                envelope("a", None),
                "names nothing",
            ),
            (
                TopicRule::by(|_| "a".repeat(250)),
                envelope("a", None),
                "250 bytes",
            ),
        ];

        for (rule, envelope, reason) in cases {
            let refusal = rule.topic(&envelope).unwrap_err().to_string();
            assert!(refusal.contains(reason), "{refusal}");
        }
    }
}
