//! A real cluster: its topics, and what is on them.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use outbox_dev::DevKafka;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Message};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::OnceCell;

use super::event::{Id, recognise};

const PATIENCE: Duration = Duration::from_secs(30);

fn config(bootstrap: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("reconnect.backoff.max.ms", "500");
    config
}

/// One broker for the tests of a program that do it no harm.
pub(crate) async fn shared() -> &'static DevKafka {
    static BROKER: OnceCell<DevKafka> = OnceCell::const_new();
    BROKER
        .get_or_init(|| async { DevKafka::start().await.unwrap() })
        .await
}

/// A name that no other test uses.
pub(crate) fn unique(name: &str) -> String {
    format!("{name}-{}", uuid::Uuid::new_v4().simple())
}

pub(crate) async fn create_topic(bootstrap: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    for created in admin.create_topics([&new], &options).await.unwrap() {
        created.unwrap();
    }
}

pub(crate) async fn delete_topic(bootstrap: &str, topic: &str) {
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE));
    for deleted in admin.delete_topics(&[topic], &options).await.unwrap() {
        deleted.unwrap();
    }
}

pub(crate) async fn alter_topic(bootstrap: &str, topic: &str, name: &str, value: &str) {
    let admin: AdminClient<DefaultClientContext> = config(bootstrap).create().unwrap();
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set(name, value);
    for altered in admin
        .alter_configs([&change], &AdminOptions::new())
        .await
        .unwrap()
    {
        altered.unwrap();
    }
}

/// Everything on a topic that is committed, partition by partition, as `read` takes it.
pub(crate) async fn records<T, F>(bootstrap: &str, topic: &str, read: F) -> Vec<Vec<T>>
where
    T: Send + 'static,
    F: Fn(&BorrowedMessage<'_>) -> T + Send + 'static,
{
    let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
    let reading = tokio::task::spawn_blocking(move || read_topic(&bootstrap, &topic, read));
    reading.await.unwrap()
}

fn read_topic<T>(bootstrap: &str, topic: &str, read: impl Fn(&BorrowedMessage<'_>) -> T) -> Vec<Vec<T>> {
    let consumer: BaseConsumer = config(bootstrap)
        .set("group.id", unique("reader"))
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .create()
        .unwrap();
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).unwrap();
    let partitions = metadata.topics()[0].partitions().len();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions as i32 {
        list.add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let mut log: Vec<Vec<T>> = (0..partitions).map(|_| Vec::new()).collect();
    let (mut ended, deadline) = (HashSet::new(), Instant::now() + PATIENCE);
    while ended.len() < partitions {
        // None: the records up to the end of the topic did not come.
        match consumer.poll(PATIENCE).unwrap() {
            Ok(message) => log[message.partition() as usize].push(read(&message)),
            Err(KafkaError::PartitionEOF(partition)) => drop(ended.insert(partition)),
            // A broker that was just brought up again may not serve yet.
            Err(KafkaError::MessageConsumption(Code::AllBrokersDown | Code::BrokerTransportFailure)) => {
                assert!(Instant::now() < deadline, "the broker does not come back");
            }
            Err(error) => panic!("{error}"),
        }
    }
    log
}

/// The events on a topic.
pub(crate) async fn log(bootstrap: &str, topic: &str) -> Vec<Vec<Id>> {
    records(bootstrap, topic, |message| {
        recognise(message.payload().unwrap()).unwrap()
    })
    .await
}
