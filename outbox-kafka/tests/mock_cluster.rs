//! The dispatcher on librdkafka's own mock cluster: errors by request, a leader that moves, a slow and a lost broker.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Context, Delivery, Dispatcher, FailureKind, HandlerError};
use outbox_inproc::Registry;
use outbox_kafka::{
    DeadLetters, DispatcherOptions, KafkaDispatcher, KafkaSettings, KafkaSource, RecordMapping,
    SourceOptions, TopicName, TopicRule, TransactionalDispatcher,
};
use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{DefaultProducerContext, FutureProducer, FutureRecord};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use support::cluster::log;
use support::event::{Counted, Id, envelope, events, id};
use support::group::handling;
use support::relay::{Pace, relay};
use support::table::Table;
use support::until;
use support::verdict::judge;
use tokio::time::Instant;

const TOPIC: &str = "mocked";

type Cluster = MockCluster<'static, DefaultProducerContext>;

fn cluster(brokers: i32) -> Cluster {
    let cluster = MockCluster::new(brokers).unwrap();
    cluster.create_topic(TOPIC, 4, i32::min(brokers, 3)).unwrap();
    cluster
}

/// Delivers 3,000 events of 30 keys while `trouble` goes on.
async fn deliver(cluster: &Cluster, trouble: impl Future<Output = ()>) -> (HashSet<Id>, u32) {
    let mapping = RecordMapping::new(TopicRule::fixed(TopicName::new(TOPIC).unwrap()));
    let options = DispatcherOptions::default()
        .with_delivery_timeout(Duration::from_secs(4))
        .with_batch_bytes_max(20_000);
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    let dispatcher = Arc::new(KafkaDispatcher::new(&settings, mapping, options).unwrap());
    let table = Arc::new(Mutex::new(Table::new(&events(3000, 30))));
    let pace = Pace {
        run_max: 20,
        pause: Duration::from_millis(5),
        ..Pace::default()
    };
    let relay = relay(dispatcher, Arc::clone(&table), pace, Duration::from_secs(90));
    tokio::join!(relay, trouble);
    let table = table.lock().unwrap();
    assert!(table.is_finished(), "events are left");
    (table.completed(), table.attempts())
}

async fn sound(cluster: &Cluster, what: &str, trouble: impl Future<Output = ()>) -> (usize, u32) {
    let (completed, attempts) = deliver(cluster, trouble).await;
    judge(&log(&cluster.bootstrap_servers(), TOPIC).await, &completed).assert_sound(what);
    (completed.len(), attempts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_requests_invert_and_lose_nothing() {
    use RDKafkaRespErr as Error;
    for error in [
        Error::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
        Error::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        Error::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        Error::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
        Error::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH,
        Error::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID,
        Error::RD_KAFKA_RESP_ERR__TRANSPORT,
    ] {
        let cluster = cluster(1);
        let trouble = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            cluster.request_errors(RDKafkaApiKey::Produce, &[error, error]);
        };

        let (completed, attempts) = sound(&cluster, &format!("{error:?}"), trouble).await;

        assert_eq!((completed, attempts), (3000, 0), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_moves_inverts_and_loses_nothing() {
    let cluster = cluster(3);
    let trouble = async {
        for round in 0..6 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            cluster
                .partition_leader(TOPIC, round % 4, Some(1 + round % 3))
                .unwrap();
        }
    };

    assert_eq!(sound(&cluster, "moving leader", trouble).await, (3000, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_slow_and_then_away_inverts_and_loses_nothing() {
    let cluster = cluster(1);
    let trouble = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cluster
            .broker_round_trip_time(1, Duration::from_millis(300))
            .unwrap();
        tokio::time::sleep(Duration::from_millis(800)).await;
        cluster.broker_down(1).unwrap();
        tokio::time::sleep(Duration::from_secs(6)).await;
        cluster.broker_round_trip_time(1, Duration::ZERO).unwrap();
        cluster.broker_up(1).unwrap();
    };

    assert_eq!(sound(&cluster, "slow and away", trouble).await, (3000, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_a_transaction_may_not_write_to_is_found_alone_and_charged() {
    let cluster = cluster(1);
    cluster.create_topic("other", 1, 1).unwrap();
    let rule = TopicRule::by(|envelope| {
        let denied = envelope
            .ordering_key
            .as_ref()
            .is_some_and(|key| key.as_str() == "1");
        if denied { TOPIC } else { "other" }.to_owned()
    });
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    let options = DispatcherOptions::default();
    let dispatcher =
        TransactionalDispatcher::new(&settings, RecordMapping::new(rule), options, "mocked").unwrap();
    let delivery = |id| Delivery::new(envelope(id), Instant::now() + Duration::from_secs(60));
    dispatcher.dispatch(&delivery(id(0, 0))).await.unwrap();
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;

    cluster.request_errors(RDKafkaApiKey::AddPartitionsToTxn, &[denied]);
    let together = [delivery(id(0, 1)), delivery(id(1, 0))];
    let together = dispatcher.dispatch_run(&together).await;
    cluster.request_errors(RDKafkaApiKey::AddPartitionsToTxn, &[denied]);
    let failure = dispatcher.dispatch(&delivery(id(1, 1))).await.unwrap_err();
    let fine = dispatcher.dispatch(&delivery(id(0, 2))).await;

    // Of two nobody can say which it was.
    assert_eq!(
        together.iter().filter(|result| result.is_ok()).count(),
        2,
        "{together:?}"
    );
    assert_eq!(failure.kind, FailureKind::Retry, "{failure:?}");
    assert!(failure.error.to_string().contains(TOPIC), "{failure:?}");
    fine.unwrap();
}

/// A record that nobody can read.
async fn publish_bad(cluster: &Cluster) {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .unwrap();
    let record = FutureRecord::<str, str>::to(TOPIC).payload("{");
    producer.send(record, Duration::from_secs(30)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_written_when_their_producer_that_was_not_allowed_is_again() {
    let cluster = cluster(1);
    cluster.create_topic("dead", 1, 1).unwrap();
    publish_bad(&cluster).await;
    // After this answer a producer is of no use any more, whatever is allowed later.
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::InitProducerId, &[denied]);
    let letters = DeadLetters::Topic(TopicName::new("dead").unwrap());
    let source = KafkaSource::new(
        &KafkaSettings::new(cluster.bootstrap_servers()),
        ("mocked", &[TopicName::new(TOPIC).unwrap()]),
        letters,
        SourceOptions::default(),
    );
    let source = Arc::new(source.unwrap());
    let handler = async |_: Counted, _: Context| Ok::<_, HandlerError>(());
    let relay = handling(&source, Registry::new().on("see", handler));

    until(|| source.totals().dead_letters == 1).await;

    relay.shutdown().await.unwrap();
    source.close().await;
}
