//! What the group has committed, asked of the broker: never more than what is finished.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::time::Duration;

use outbox_core::{Claimed, EventId, Source};
use outbox_kafka::{DeadLetters, KafkaSettings, KafkaSource, SourceOptions, TopicName};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use support::cluster::{create_topic, unique};
use support::event::{envelope, id};
use support::group::{Group, claim_in_all, completed, failed, request};
use support::until;
use tokio::time::Instant;

async fn settle_all(source: &KafkaSource, claimed: impl IntoIterator<Item = &Claimed>) {
    let settled = source.settle(claimed.into_iter().map(completed).collect()).await;
    assert_eq!(settled.unwrap().lost, []);
}

async fn until_committed(group: &Group, expected: &[i64]) {
    let patience = Instant::now() + Duration::from_secs(120);
    loop {
        let committed = group.committed(expected.len() as i32).await;
        if committed == expected {
            return;
        }
        assert!(Instant::now() < patience, "{committed:?} instead of {expected:?}");
    }
}

/// A group whose dead-letter topic is missing: the client waits ten seconds for it before it gives a letter up.
async fn group_without_a_grave() -> Group {
    let mut group = Group::shared(1).await;
    group.dead_letters = TopicName::new(unique("missing")).unwrap();
    group
}

async fn create_grave(group: &Group) {
    create_topic(&group.bootstrap, group.dead_letters.as_str(), 1, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_is_slow_holds_up_its_key_and_its_offset_and_nothing_else() {
    let group = group_without_a_grave().await;
    for n in 0..20 {
        group.publish(envelope(id(n, 0))).await;
    }
    group.publish(envelope(id(3, 1))).await;
    let source = group.source();
    let claimed = claim_in_all(&source, 20).await;
    let (dead, good): (Vec<_>, Vec<_>) = claimed.iter().partition(|claimed| claimed.position.0 == 3);

    let all = good.iter().map(|good| completed(good));
    let settling = source.settle(all.chain(dead.iter().map(|dead| failed(dead))).collect());
    let settled = tokio::time::timeout(Duration::from_secs(5), settling).await;

    assert_eq!(
        settled.expect("it waited for the letter").unwrap().lost,
        [],
        "the settlements stand"
    );
    assert_eq!(source.totals().completed, 19);
    assert_eq!((source.totals().unburied, source.totals().dead_letters), (1, 0));
    until_committed(&group, &[3]).await;
    // Others of any key but its own come, and are settled.
    group.publish(envelope(id(30, 0))).await;
    let other = claim_in_all(&source, 1).await;
    assert_eq!(other[0].position.0, 21, "the next of its key waits");
    settle_all(&source, &other).await;

    create_grave(&group).await;
    let follower = claim_in_all(&source, 1).await;
    assert_eq!(follower[0].position.0, 20);
    settle_all(&source, &follower).await;
    until_committed(&group, &[22]).await;
    assert_eq!((source.totals().unburied, source.totals().dead_letters), (0, 1));
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_whose_letter_was_not_safe_when_its_source_closed_comes_again() {
    let group = group_without_a_grave().await;
    for n in 0..3 {
        group.publish(envelope(id(n, 0))).await;
    }
    let first = group.source();
    let claimed = claim_in_all(&first, 3).await;
    let outcomes = vec![
        completed(&claimed[0]),
        failed(&claimed[1]),
        completed(&claimed[2]),
    ];
    assert_eq!(first.settle(outcomes).await.unwrap().lost, []);
    first.close().await;

    assert_eq!(group.committed(1).await, [1]);
    create_grave(&group).await;
    let second = group.source();
    let again = claim_in_all(&second, 2).await;
    assert_eq!(again[0].position.0, 1);
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_many_dead_letters_that_cannot_be_written_pause_the_partition() {
    let group = group_without_a_grave().await;
    for n in 0..30 {
        group.publish(envelope(id(n, 0))).await;
    }
    let options = SourceOptions::default()
        .with_buffered_events_max(10)
        .with_window_max(10);
    let source = group.source_with(&group.settings(), options);
    let claimed = claim_in_all(&source, 10).await;

    source.settle(claimed.iter().map(failed).collect()).await.unwrap();

    assert_eq!((source.totals().unburied, source.totals().unfinished), (10, 10));
    assert!(source.claim(request(10)).await.unwrap().is_empty());
    create_grave(&group).await;
    until(|| source.totals().dead_letters == 10).await;
    let next = claim_in_all(&source, 10).await;
    assert!(next.iter().all(|event| event.position.0 >= 10));
    source.close().await;
}

/// How many of these, which are all of a partition, are finished without a gap.
fn prefix(of_partition: &[&Claimed], finished: &[EventId]) -> i64 {
    let mut events: Vec<_> = of_partition.to_vec();
    events.sort_by_key(|claimed| claimed.position.0);
    let prefix = events.iter().take_while(|claimed| finished.contains(&claimed.id));
    prefix.count() as i64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_revoked_partition_what_was_finished_before_is_committed_and_nothing_else() {
    let group = Group::shared(2).await;
    for n in 0..40 {
        group.publish(envelope(id(n, 0))).await;
    }
    // Nothing is committed before it has to be.
    let options = SourceOptions::default().with_commit_interval(Duration::from_secs(3600));
    let first = group.source_with(&group.settings(), options);
    let claimed = claim_in_all(&first, 40).await;
    // The epoch of an assignment tells the partitions apart.
    let (left, right): (Vec<_>, Vec<_>) =
        (claimed.iter()).partition(|event| event.token.number() == claimed[0].token.number());
    let done: Vec<&Claimed> = claimed.iter().filter(|event| event.position.0 != 4).collect();
    settle_all(&first, done.iter().copied()).await;
    let finished: Vec<EventId> = done.iter().map(|event| event.id).collect();
    assert_eq!(
        [prefix(&left, &finished), prefix(&right, &finished)],
        [4, 4],
        "both partitions have enough"
    );

    let guest = group.source();
    until(|| claimed.iter().any(|event| event.lost.is_cancelled())).await;
    // The guest has its partition when the last commit of it is answered.
    let taken_over = claim_in_all(&guest, 1).await;
    let committed = group.committed(2).await;
    assert_eq!(committed.iter().sum::<i64>(), 4, "{committed:?}");

    // What was held of the revoked partition is finished too late.
    let late = claimed.iter().filter(|event| event.position.0 == 4);
    let lost = first.settle(late.map(completed).collect()).await.unwrap().lost;
    assert_eq!(lost.len(), 1);
    // Asked before it closes and gives the other up too, and of all: only what was not finished is told.
    let of_other = if left.iter().any(|event| event.lost.is_cancelled()) {
        right.len()
    } else {
        left.len()
    };
    first.close().await;
    let mut committed = group.committed(2).await;
    committed.sort_unstable();
    assert_eq!(
        committed,
        [4, of_other as i64],
        "the revoked one stays where it was"
    );
    assert_eq!(taken_over[0].position.0, 4, "and its new owner begins there");
    guest.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_fails_is_repeated_although_nothing_more_comes() {
    let cluster = MockCluster::new(1).unwrap();
    cluster.create_topic("mocked", 1, 1).unwrap();
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.bootstrap_servers());
    let producer: FutureProducer = config.create().unwrap();
    let record = FutureRecord::to("mocked").key("k").payload("v");
    producer.send(record, Duration::from_secs(30)).await.unwrap();
    let asking: BaseConsumer = config.set("group.id", "group").create().unwrap();
    let committed = || {
        let mut list = TopicPartitionList::new();
        list.add_partition("mocked", 0);
        let offsets = asking.committed_offsets(list, Duration::from_secs(10)).unwrap();
        offsets.elements()[0].offset()
    };
    let topics = [TopicName::new("mocked").unwrap()];
    let settings = KafkaSettings::new(cluster.bootstrap_servers());
    let options = SourceOptions::default().with_commit_interval(Duration::from_millis(50));
    let source = KafkaSource::new(&settings, ("group", &topics), DeadLetters::Drop, options).unwrap();
    let claimed = claim_in_all(&source, 1).await;
    until(|| committed() == Offset::Offset(0)).await;

    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[refused]);
    settle_all(&source, &claimed).await;

    until(|| committed() == Offset::Offset(1)).await;
    source.close().await;
}
