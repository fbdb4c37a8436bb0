//! A topic, a group that reads it, and a dead-letter topic.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    ClaimRequest, Claimed, Delivery, Dispatcher, Envelope, KeyPolicy, Outcome, Relay, RelayHandle,
    RetryPolicy, Settlement, Source,
};
use outbox_inproc::Registry;
use outbox_kafka::{
    DeadLetters, DispatcherOptions, KafkaDispatcher, KafkaSettings, KafkaSource, RecordMapping,
    SourceOptions, TopicName, TopicRule,
};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, TopicPartitionList};
use tokio::time::Instant;

use super::cluster::{create_topic, shared, unique};

pub(crate) struct Group {
    pub(crate) bootstrap: String,
    pub(crate) topic: TopicName,
    pub(crate) dead_letters: TopicName,
    pub(crate) name: String,
    publisher: KafkaDispatcher,
}

impl Group {
    /// On the broker that tests share.
    pub(crate) async fn shared(partitions: i32) -> Self {
        Self::new(shared().await.bootstrap(), partitions).await
    }

    pub(crate) async fn new(bootstrap: &str, partitions: i32) -> Self {
        let name = unique("group");
        let topic = TopicName::new(format!("{name}-topic")).unwrap();
        let dead_letters = TopicName::new(format!("{name}-dead")).unwrap();
        create_topic(bootstrap, topic.as_str(), partitions, &[]).await;
        create_topic(bootstrap, dead_letters.as_str(), 1, &[]).await;
        let mapping = RecordMapping::new(TopicRule::fixed(topic.clone()));
        let publisher = KafkaDispatcher::new(
            &KafkaSettings::new(bootstrap),
            mapping,
            DispatcherOptions::default(),
        );
        Self {
            bootstrap: bootstrap.to_owned(),
            topic,
            dead_letters,
            name,
            publisher: publisher.unwrap(),
        }
    }

    pub(crate) fn settings(&self) -> KafkaSettings {
        KafkaSettings::new(&self.bootstrap)
            .with("session.timeout.ms", "6000")
            .with("heartbeat.interval.ms", "500")
    }

    pub(crate) fn source(&self) -> Arc<KafkaSource> {
        self.source_with(
            &self.settings(),
            SourceOptions::default().with_commit_interval(Duration::from_millis(50)),
        )
    }

    pub(crate) fn source_with(&self, settings: &KafkaSettings, options: SourceOptions) -> Arc<KafkaSource> {
        let letters = DeadLetters::Topic(self.dead_letters.clone());
        let topics = [self.topic.clone()];
        Arc::new(KafkaSource::new(settings, (&self.name, &topics), letters, options).unwrap())
    }

    /// What the broker has as the group's offset of each partition; 0 where there is none.
    pub(crate) async fn committed(&self, partitions: i32) -> Vec<i64> {
        let (bootstrap, name, topic) = (
            self.bootstrap.clone(),
            self.name.clone(),
            self.topic.as_str().to_owned(),
        );
        let asking = tokio::task::spawn_blocking(move || {
            // It asks, and joins nothing.
            let consumer: BaseConsumer = ClientConfig::new()
                .set("bootstrap.servers", bootstrap)
                .set("group.id", name)
                .create()
                .unwrap();
            let mut list = TopicPartitionList::new();
            list.add_partition_range(&topic, 0, partitions - 1);
            let offsets = consumer.committed_offsets(list, Duration::from_secs(60)).unwrap();
            let offsets = offsets.elements_for_topic(&topic);
            offsets
                .iter()
                .map(|element| element.offset().to_raw().unwrap().max(0))
                .collect()
        });
        asking.await.unwrap()
    }

    /// Tries again for a while: a new topic may not be known yet to the broker that is asked.
    pub(crate) async fn publish(&self, envelope: impl Into<Arc<Envelope>>) {
        let (envelope, patience) = (envelope.into(), Instant::now() + Duration::from_secs(60));
        loop {
            let delivery = Delivery::new(Arc::clone(&envelope), Instant::now() + Duration::from_secs(30));
            match self.publisher.dispatch(&delivery).await {
                Ok(_) => return,
                Err(failure) => assert!(Instant::now() < patience, "{failure:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Puts a record on the topic that no publisher of ours would.
    pub(crate) async fn publish_raw(&self, key: &str, value: Option<&[u8]>, headers: OwnedHeaders) {
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", &self.bootstrap)
            .create()
            .unwrap();
        let mut record = FutureRecord::<str, [u8]>::to(self.topic.as_str())
            .key(key)
            .headers(headers);
        record.payload = value;
        producer.send(record, Duration::from_secs(30)).await.unwrap();
    }
}

pub(crate) fn failed(claimed: &Claimed) -> Settlement {
    let outcome = Outcome::Failed {
        error: "refused".into(),
        done: vec![],
        key: KeyPolicy::GoOn,
    };
    settlement(claimed, outcome)
}

/// Handles what the source yields; what fails is tried three times.
pub(crate) fn handling(source: &Arc<KafkaSource>, registry: Registry) -> RelayHandle {
    let dispatcher = Arc::new(registry.build().unwrap());
    let retry = RetryPolicy::fixed(3.try_into().unwrap(), Duration::from_millis(50));
    let relay = Relay::builder(source.clone(), dispatcher).retry(retry);
    relay.build().unwrap().spawn()
}

pub(crate) fn settlement(claimed: &Claimed, outcome: Outcome) -> Settlement {
    Settlement {
        token: claimed.token,
        position: claimed.position,
        id: claimed.id,
        outcome,
    }
}

pub(crate) fn completed(claimed: &Claimed) -> Settlement {
    settlement(claimed, Outcome::Completed)
}

pub(crate) fn request(most: u32) -> ClaimRequest {
    ClaimRequest::new(most.try_into().unwrap(), Duration::from_secs(60))
}

/// Claims until that many events are in hand, however many claims it takes.
pub(crate) async fn claim_in_all(source: &KafkaSource, count: usize) -> Vec<Claimed> {
    let patience = Instant::now() + Duration::from_secs(60);
    let mut claimed = Vec::new();
    while claimed.len() < count {
        assert!(
            Instant::now() < patience,
            "only {} of {count} came",
            claimed.len()
        );
        match source.claim(request((count - claimed.len()) as u32)).await {
            Ok(more) if more.is_empty() => drop(source.wait(Duration::from_millis(100)).await),
            Ok(more) => claimed.extend(more),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    claimed
}
