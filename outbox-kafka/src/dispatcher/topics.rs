//! What is asked of the cluster before a topic is written to.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::ConfigError;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{IsError, RDKafkaErrorCode};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::verdict::{Fault, fault};
use crate::TopicName;
use crate::client_log::ClientLog;
use crate::settings::KafkaSettings;

/// What was learned is asked again after so long: partitions may be added, limits changed.
const FRESH: Duration = Duration::from_secs(60);
/// A topic's trouble is taken as lasting for so long, so that each event does not ask anew.
const TROUBLE_LASTS: Duration = Duration::from_secs(1);
/// A topic that was known so short a time ago is not doubted yet.
const DOUBT_AFTER: Duration = Duration::from_secs(1);
/// Between the two answers that make a doubted topic one in trouble: a broker that is just starting may not know all.
const DOUBT_AGAIN: Duration = Duration::from_millis(500);
/// How long one question may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);
/// How long to wait before asking a cluster again that did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// What has to be known of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) partitions: NonZeroU32,
    /// The topic's `max.message.bytes`, if the cluster tells.
    pub(super) message_bytes_max: Option<usize>,
}

/// What a batch needs beside its records.
pub(super) const BATCH_FRAME: usize = 100;

impl Facts {
    /// The most bytes of a batch, if there is a limit: over it the broker refuses all of it.
    pub(super) fn batch_bytes_max(&self) -> Option<usize> {
        let most = self.message_bytes_max?;
        Some(most.saturating_sub(BATCH_FRAME).max(1))
    }
}

/// What the cluster said about a topic.
#[derive(Debug, Clone)]
enum Answer {
    Known(Facts),
    /// The topic's own trouble.
    Trouble(String),
    /// The cluster did not answer.
    Silence,
}

/// What is known of a topic.
#[derive(Debug, Clone)]
pub(super) enum Knowledge {
    Known(Facts),
    /// The topic's own trouble: it is not there, or not ours to write.
    Trouble(String),
    /// The cluster has been asked.
    Asked,
}

/// Asks the cluster about topics, and remembers.
pub(super) struct Topics {
    admin: Arc<AdminClient<ClientLog>>,
    known: HashMap<TopicName, (Answer, Instant)>,
    asked: HashMap<TopicName, Instant>,
    /// Known topics on which nothing moves, and whether the cluster has called them in trouble since.
    doubted: HashMap<TopicName, bool>,
    questions: JoinSet<(TopicName, Answer)>,
}

/// Makes the client that asks.
pub(super) fn admin(settings: &KafkaSettings) -> Result<AdminClient<ClientLog>, ConfigError> {
    let config = settings.client_config(&[]);
    AdminClient::from_config_and_context(&config, ClientLog::new(settings, "topics"))
        .map_err(|error| settings.refused(&error))
}

impl Topics {
    pub(super) fn new(admin: Arc<AdminClient<ClientLog>>) -> Self {
        Self {
            admin,
            known: HashMap::new(),
            asked: HashMap::new(),
            doubted: HashMap::new(),
            questions: JoinSet::new(),
        }
    }

    /// What is known of a topic; asks if that is nothing, or old.
    pub(super) fn about(&mut self, topic: &TopicName, now: Instant) -> Knowledge {
        let (knowledge, fresh) = match self.known.get(topic) {
            Some((Answer::Known(facts), at)) => (Knowledge::Known(*facts), now - *at < FRESH),
            Some((Answer::Trouble(why), at)) if now - *at < TROUBLE_LASTS => {
                (Knowledge::Trouble(why.clone()), true)
            }
            _ => (Knowledge::Asked, false),
        };
        if !fresh && !self.asked.contains_key(topic) {
            self.ask(topic.clone(), Duration::ZERO, now);
        }
        knowledge
    }

    fn ask(&mut self, topic: TopicName, wait: Duration, now: Instant) {
        self.asked.insert(topic.clone(), now);
        let admin = Arc::clone(&self.admin);
        self.questions.spawn(async move {
            tokio::time::sleep(wait).await;
            let answer = ask(admin, topic.clone()).await;
            (topic, answer)
        });
    }

    /// Waits for the next answer. Never ends while nothing is asked.
    ///
    /// # Cancel safety
    /// Nothing is lost: the answer comes with the next call.
    pub(super) async fn answered(&mut self) {
        let Some(answer) = self.questions.join_next().await else {
            return std::future::pending().await;
        };
        let now = Instant::now();
        let Ok((topic, answer)) = answer else { return };
        self.asked.remove(&topic);
        self.learn(topic, answer, now);
    }

    fn learn(&mut self, topic: TopicName, answer: Answer, now: Instant) {
        let in_use = matches!(self.known.get(&topic), Some((Answer::Known(_), _)));
        match (answer, self.doubted.get(&topic).copied()) {
            (Answer::Silence, _) => self.ask(topic, ASK_AGAIN, now),
            (Answer::Trouble(_), Some(false)) if in_use => {
                self.doubted.insert(topic.clone(), true);
                self.ask(topic, DOUBT_AGAIN, now);
            }
            // What was known stays in use until nothing moves: its records get their verdict from the broker.
            (Answer::Trouble(_), None) if in_use => {
                self.known.entry(topic).and_modify(|(_, at)| *at = now);
            }
            (answer, _) => {
                self.doubted.remove(&topic);
                self.known.insert(topic, (answer, now));
            }
        }
    }

    /// Asks about a topic on which nothing moves, however fresh what is known of it. The client keeps the records of a
    /// topic that was deleted, and says nothing of them until their time is up.
    pub(super) fn doubt(&mut self, topic: &TopicName, now: Instant) {
        let known = self.known.get(topic);
        let settled = known.is_some_and(|(answer, at)| {
            matches!(answer, Answer::Known(_)) && now.saturating_duration_since(*at) >= DOUBT_AFTER
        });
        if settled && !self.doubted.contains_key(topic) {
            self.doubted.insert(topic.clone(), false);
            if !self.asked.contains_key(topic) {
                self.ask(topic.clone(), Duration::ZERO, now);
            }
        }
    }

    /// The topic's own trouble, when that is the last that was learned of it.
    pub(super) fn trouble(&self, topic: &TopicName) -> Option<&str> {
        match self.known.get(topic) {
            Some((Answer::Trouble(why), _)) => Some(why),
            _ => None,
        }
    }

    /// The cluster has refused to let us write to a topic.
    pub(super) fn refused(&mut self, topic: &TopicName, code: RDKafkaErrorCode, now: Instant) {
        let trouble = Answer::Trouble(format!("topic {topic}: {code}"));
        self.known.insert(topic.clone(), (trouble, now));
    }

    /// Forgets what is known of a topic: the broker said otherwise.
    pub(super) fn forget(&mut self, topic: &TopicName) {
        self.known.remove(topic);
    }
}

async fn ask(admin: Arc<AdminClient<ClientLog>>, topic: TopicName) -> Answer {
    let (client, name) = (Arc::clone(&admin), topic.clone());
    let metadata = tokio::task::spawn_blocking(move || partitions(&client, &name)).await;
    let partitions = match metadata {
        Ok(Ok(partitions)) => partitions,
        Ok(Err(code)) if fault(code) == Fault::Topic => {
            return Answer::Trouble(format!("topic {topic}: {code}"));
        }
        Ok(Err(_)) | Err(_) => return Answer::Silence,
    };
    Answer::Known(Facts {
        partitions,
        message_bytes_max: message_bytes_max(&admin, &topic).await,
    })
}

fn partitions(client: &AdminClient<ClientLog>, topic: &TopicName) -> Result<NonZeroU32, RDKafkaErrorCode> {
    let metadata = client.inner().fetch_metadata(Some(topic.as_str()), ASK_TIMEOUT);
    let metadata = metadata.map_err(|error| error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail))?;
    let topic = metadata
        .topics()
        .first()
        .ok_or(RDKafkaErrorCode::LeaderNotAvailable)?;
    if let Some(error) = topic.error().filter(IsError::is_error) {
        return Err(error.into());
    }
    let partitions = u32::try_from(topic.partitions().len())
        .ok()
        .and_then(NonZeroU32::new);
    partitions.ok_or(RDKafkaErrorCode::LeaderNotAvailable)
}

/// Not every cluster tells, and not everyone: without it the broker has the only word about sizes.
async fn message_bytes_max(admin: &AdminClient<ClientLog>, topic: &TopicName) -> Option<usize> {
    let options = AdminOptions::new().request_timeout(Some(ASK_TIMEOUT));
    let resource = ResourceSpecifier::Topic(topic.as_str());
    let described = tokio::time::timeout(ASK_TIMEOUT, admin.describe_configs([&resource], &options)).await;
    let described = described.ok()?.ok()?.into_iter().next()?.ok()?;
    let entry = described
        .entries
        .into_iter()
        .find(|entry| entry.name == "max.message.bytes")?;
    entry.value?.parse().ok()
}
