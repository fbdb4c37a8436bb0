//! What goes wrong around the consumer, on a real broker: it stays where it belongs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Claimed, Context, Envelope, HEADER_BYTES_MAX, HandlerError, Headers, Listening, RelayHandle, Source,
    SourceError,
};
use outbox_inproc::Registry;
use outbox_kafka::{DeadLetters, KafkaSource, SourceOptions, TopicName};
use rdkafka::message::{Headers as _, Message, OwnedHeaders};
use support::cluster::{create_topic, records, unique};
use support::event::{Counted, envelope, id};
use support::group::{Group, claim_in_all, completed, handling, request};
use support::raw::publish_with_header;
use support::until;
use tokio::time::Instant;

fn handled(source: &Arc<KafkaSource>) -> RelayHandle {
    let handler = async |_: Counted, _: Context| Ok::<_, HandlerError>(());
    handling(source, Registry::new().on("see", handler))
}

async fn publish_good(group: &Group, count: u64) {
    for n in 0..count {
        group.publish(envelope(id(n as u32, n))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_is_too_large_is_written_without_its_value() {
    let mut group = Group::shared(2).await;
    group.dead_letters = TopicName::new(unique("small")).unwrap();
    let limit = [("max.message.bytes", "2000")];
    create_topic(&group.bootstrap, group.dead_letters.as_str(), 1, &limit).await;
    // Nothing to compress.
    let noise = std::iter::repeat_with(|| uuid::Uuid::new_v4().into_bytes()).flatten();
    let body: Vec<u8> = noise.take(100_000).collect();
    group.publish_raw("k", Some(&body), OwnedHeaders::new()).await;
    publish_good(&group, 20).await;
    let source = group.source();
    let relay = handled(&source);

    until(|| source.totals().completed == 20 && source.totals().dead_letters == 1).await;
    relay.shutdown().await.unwrap();
    source.close().await;

    let letters = records(&group.bootstrap, group.dead_letters.as_str(), |message| {
        let headers = message.headers().unwrap().iter();
        let size = headers
            .filter(|header| header.key == "outbox-dead-value-bytes")
            .map(|header| String::from_utf8_lossy(header.value.unwrap()).into_owned())
            .next();
        (
            message.key().map(<[u8]>::to_vec),
            message.payload().is_some(),
            size,
        )
    });
    let letters: Vec<_> = letters.await.into_iter().flatten().collect();
    assert_eq!(letters, [(Some(b"k".to_vec()), false, Some("100000".to_owned()))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_short_headers_and_one_long_one_are_delivered_and_read() {
    let group = Group::shared(1).await;
    let short = (0..4000).map(|n| (format!("{n:x}"), String::new())).collect();
    let long = Headers::from([("n".to_owned(), "v".repeat(HEADER_BYTES_MAX - 1))]);
    let mut published = Vec::new();
    for (n, headers) in (0..).zip([short, long]) {
        let mut envelope = Envelope::clone(&envelope(id(n, 0)));
        envelope.headers = headers;
        group.publish(envelope.clone()).await;
        published.push(envelope);
    }
    let source = group.source();

    let claimed = claim_in_all(&source, 2).await;

    let read: Vec<_> = claimed
        .iter()
        .map(|claimed| claimed.envelope.clone().unwrap())
        .collect();
    assert_eq!(read, published);
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_whose_name_is_no_text_makes_a_dead_letter_and_no_more() {
    let group = Group::shared(1).await;
    publish_good(&group, 1).await;
    publish_with_header(&group.bootstrap, group.topic.as_str(), b"\xff\xfe").await;
    publish_good(&group, 3).await;
    let source = group.source();
    let relay = handled(&source);

    until(|| source.totals().completed == 4 && source.totals().dead_letters == 1).await;
    relay.shutdown().await.unwrap();
    source.close().await;

    assert_eq!(group.committed(1).await, [5]);
    let letters = records(&group.bootstrap, group.dead_letters.as_str(), |message| {
        message.headers().unwrap().count()
    });
    assert_eq!(letters.await[0], [6], "its own header, and those about its death");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_that_cannot_be_written_waits_alone() {
    let mut group = Group::shared(2).await;
    group.dead_letters = TopicName::new(unique("not-yet")).unwrap();
    group.publish_raw("k", Some(b"{"), OwnedHeaders::new()).await;
    publish_good(&group, 20).await;
    let source = group.source();
    let relay = handled(&source);

    until(|| source.totals().completed == 20).await;
    assert_eq!(source.totals().dead_letters, 0);
    create_topic(&group.bootstrap, group.dead_letters.as_str(), 1, &[]).await;
    until(|| source.totals().dead_letters == 1).await;

    relay.shutdown().await.unwrap();
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_partition_that_leaves_and_returns_is_read_again() {
    let group = Group::shared(2).await;
    publish_good(&group, 100).await;
    let options = SourceOptions::default()
        .with_buffered_events_max(10)
        .with_window_max(10)
        .with_stall_timeout(Duration::from_secs(600));
    let stays = group.source_with(&group.settings(), options);
    // Of each partition there is more than it holds: both are paused.
    until(|| stays.totals().unfinished == 20).await;
    let held = claim_in_all(&stays, 20).await;
    let guest = group.source();
    claim_in_all(&guest, 5).await;
    until(|| held.iter().any(|claimed| claimed.lost.is_cancelled())).await;
    let left = stays.totals().unfinished;
    guest.close().await;

    until(|| stays.totals().unfinished > left).await;
    let kept = held.iter().filter(|claimed| !claimed.lost.is_cancelled());
    let settled = stays.settle(kept.map(completed).collect()).await.unwrap();

    assert!(
        settled.lost.is_empty(),
        "the other partition was ours all the time"
    );
    stays.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_refused_leaves_no_member_in_the_group() {
    let group = Group::shared(2).await;
    publish_good(&group, 20).await;
    let letters = DeadLetters::Topic(group.dead_letters.clone());
    let topics = [group.topic.clone()];
    let settings = group.settings().with("acks", "1");

    let refused = KafkaSource::new(
        &settings,
        (&group.name, &topics),
        letters,
        SourceOptions::default(),
    );
    assert!(refused.is_err());

    let source = group.source();
    assert_eq!(claim_in_all(&source, 20).await.len(), 20);
    source.close().await;
}

#[tokio::test]
async fn a_source_does_not_take_what_its_dead_letters_rest_on() {
    let group = Group::shared(1).await;
    for (setting, value) in [
        ("delivery.report.only.error", "true"),
        ("message.timeout.ms", "60000"),
        ("delivery.timeout.ms", "60000"),
    ] {
        let letters = DeadLetters::Topic(group.dead_letters.clone());
        let topics = [group.topic.clone()];
        let settings = group.settings().with(setting, value);

        let refused = KafkaSource::new(
            &settings,
            (&group.name, &topics),
            letters,
            SourceOptions::default(),
        );

        assert_eq!(refused.err().unwrap().setting, setting);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_not_there_is_named_until_it_is() {
    let group = Group::shared(1).await;
    let missing = TopicName::new(unique("missing")).unwrap();
    let letters = DeadLetters::Topic(group.dead_letters.clone());
    let topics = [missing.clone()];
    let source = KafkaSource::new(
        &group.settings(),
        (&group.name, &topics),
        letters,
        SourceOptions::default(),
    );
    let source = source.unwrap();

    let why = until_claims(&source, Result::is_err).await.unwrap_err();
    let why = std::error::Error::source(&why).unwrap().to_string();
    assert!(why.contains(missing.as_str()), "{why}");
    create_topic(&group.bootstrap, missing.as_str(), 1, &[]).await;
    until_claims(&source, Result::is_ok).await.unwrap();

    assert_eq!(source.listening(), Listening::Up);
    source.close().await;
}

type Claims = Result<Vec<Claimed>, SourceError>;

async fn until_claims(source: &KafkaSource, are: impl Fn(&Claims) -> bool) -> Claims {
    let patience = Instant::now() + Duration::from_secs(120);
    loop {
        let claims = source.claim(request(1)).await;
        if are(&claims) {
            return claims;
        }
        assert!(Instant::now() < patience, "{claims:?}");
        source.wait(Duration::from_millis(100)).await;
    }
}
