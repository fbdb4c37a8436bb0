//! A consumer to which nothing comes, without a word of why, is made anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Context, HandlerError, Source};
use outbox_inproc::Registry;
use outbox_kafka::{DeadLetters, KafkaSettings, KafkaSource, SourceOptions, TopicName};
use rdkafka::ClientConfig;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use support::event::{Counted, Id, envelope, id};
use support::group::{Group, claim_in_all, handling, request};
use support::silent::Silent;
use support::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_hears_nothing_more_is_made_anew_and_goes_on() {
    let (silent, broker) = Silent::before_a_broker(3).await;
    let group = Group::new(broker.bootstrap(), 1).await;
    for n in 0..40 {
        group.publish(envelope(id(n, 0))).await;
    }
    // A few records at a time, so that it knows of more; and by itself it would wait for longer than this test.
    let settings = group
        .settings()
        .with("fetch.message.max.bytes", "1000")
        .with("socket.timeout.ms", "300000");
    let options = SourceOptions::default().with_stall_timeout(Duration::from_secs(10));
    let source = group.source_with(&settings, options);
    let seen = Arc::new(Mutex::new(HashSet::<Id>::new()));
    let see = {
        let seen = Arc::clone(&seen);
        move |event: Counted, _: Context| {
            seen.lock().unwrap().insert(event.id);
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let relay = handling(&source, Registry::new().on("see", see));
    until(|| silent.swallowed() > 0).await;
    let before = seen.lock().unwrap().len();
    assert!(before < 40, "all of it came before the silence");

    until(|| seen.lock().unwrap().len() == 40).await;

    assert!(silent.readers() > 1, "it goes on over another connection");
    relay.shutdown().await.unwrap();
    source.close().await;
    assert_eq!(group.committed(1).await, [40]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_gets_an_error_instead_of_its_offsets_is_made_anew_and_reads() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("mocked", 1, 1).unwrap();
    let mut config = ClientConfig::new();
    let producer: FutureProducer = config
        .set("bootstrap.servers", cluster.bootstrap_servers())
        .create()
        .unwrap();
    let record = FutureRecord::to("mocked").key("k").payload("v");
    producer.send(record, Duration::from_secs(30)).await.unwrap();
    // As when the group's coordinator moves just then.
    let moved = RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_COORDINATOR;
    cluster.request_errors(RDKafkaApiKey::OffsetFetch, &[moved]);

    let topics = [TopicName::new("mocked").unwrap()];
    let options = SourceOptions::default().with_stall_timeout(Duration::from_secs(10));
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    let source = KafkaSource::new(&settings, ("group", &topics), DeadLetters::Drop, options).unwrap();

    assert_eq!(claim_in_all(&source, 1).await[0].position.0, 0);
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_has_nothing_to_read_is_left_as_it_is() {
    let group = Group::shared(3).await;
    group.publish(envelope(id(1, 0))).await;
    let options = SourceOptions::default().with_stall_timeout(Duration::from_secs(10));
    let source = group.source_with(&group.settings(), options);
    let held = claim_in_all(&source, 1).await;

    let end = tokio::time::Instant::now() + Duration::from_secs(25);
    while tokio::time::Instant::now() < end {
        assert!(source.claim(request(1)).await.unwrap().is_empty());
        source.wait(Duration::from_millis(200)).await;
    }

    assert!(!held[0].lost.is_cancelled(), "it was made anew");
    source.close().await;
}
