//! The consumer as a source, on a real broker.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Claimed, Context, HandlerError, KeyPolicy, Outcome, Source};
use outbox_dev::{DevKafka, KafkaStop};
use outbox_inproc::Registry;
use outbox_kafka::SourceOptions;
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use support::cluster::records;
use support::event::{Counted, Id, envelope, events, id};
use support::group::{Group, claim_in_all, completed, handling, request, settlement};
use support::until;

fn offsets(claimed: &[Claimed]) -> Vec<i64> {
    let mut offsets: Vec<_> = claimed.iter().map(|claimed| claimed.position.0).collect();
    offsets.sort_unstable();
    offsets
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_contiguous_finished_prefix_is_committed() {
    let group = Group::shared(1).await;
    for n in 0..7 {
        group.publish(envelope(id(n, 0))).await;
    }
    let first = group.source();
    let claimed = claim_in_all(&first, 7).await;
    let done = claimed.iter().filter(|claimed| claimed.position.0 != 4);
    let settled = first.settle(done.map(completed).collect()).await;
    assert!(settled.unwrap().lost.is_empty());
    first.close().await;

    let second = group.source();
    let again = claim_in_all(&second, 3).await;

    assert_eq!(offsets(&again), [4, 5, 6]);
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_made_while_there_is_no_broker_begins_when_there_is_one() {
    let broker = DevKafka::start_own().await.unwrap();
    let group = Group::new(broker.bootstrap(), 1).await;
    group.publish(envelope(id(1, 0))).await;
    broker.stop(KafkaStop::Kill).await.unwrap();

    let source = group.source();
    let early = source.claim(request(1)).await;
    broker.resume().await.unwrap();

    assert!(!early.is_ok_and(|claimed| !claimed.is_empty()));
    assert_eq!(claim_in_all(&source, 1).await.len(), 1);
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lag_is_what_is_not_finished() {
    let group = Group::shared(2).await;
    for n in 0..10 {
        group.publish(envelope(id(n, 0))).await;
    }
    let source = group.source();
    let claimed = claim_in_all(&source, 10).await;
    let lag = || source.lags().iter().map(|lag| lag.records).sum::<u64>();
    until(|| lag() == 10).await;

    let settled = source.settle(claimed.iter().map(completed).collect()).await;

    assert!(settled.unwrap().lost.is_empty());
    until(|| lag() == 0).await;
    source.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_over_by_another_can_neither_be_settled_nor_committed() {
    let group = Group::shared(2).await;
    for n in 0..20 {
        group.publish(envelope(id(n, 0))).await;
    }
    let first = group.source();
    let claimed = claim_in_all(&first, 20).await;
    let second = group.source();
    // The second joins and takes one of the two partitions over.
    let taken_over = claim_in_all(&second, 1).await;
    until(|| claimed.iter().any(|claimed| claimed.lost.is_cancelled())).await;

    let all = claimed.iter().map(completed).collect();
    let lost = first.settle(all).await.unwrap().lost;
    let lost_too = claimed.iter().filter(|claimed| claimed.lost.is_cancelled());
    assert_eq!(lost.len(), lost_too.count());
    first.close().await;

    // The lost ones come again, all of them; the settled ones do not.
    let rest = claim_in_all(&second, lost.len() - taken_over.len()).await;
    assert!(second.claim(request(10)).await.unwrap().is_empty());
    let mut again: Vec<_> = rest.iter().chain(&taken_over).map(|claimed| claimed.id).collect();
    let mut expected: Vec<_> = claimed
        .iter()
        .filter(|claimed| claimed.lost.is_cancelled())
        .map(|claimed| claimed.id)
        .collect();
    again.sort_unstable();
    expected.sort_unstable();
    assert_eq!(again, expected);
    second.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_letter_has_its_coordinates_and_its_reason() {
    let group = Group::shared(1).await;
    group.publish(envelope(id(1, 0))).await;
    let source = group.source();
    let claimed = claim_in_all(&source, 1).await;

    let failed = Outcome::Failed {
        error: "no such customer".into(),
        done: vec![],
        key: KeyPolicy::GoOn,
    };
    source
        .settle(vec![settlement(&claimed[0], failed)])
        .await
        .unwrap();
    source.close().await;

    let letters = dead_letters(&group).await;
    assert_eq!(letters.len(), 1);
    let expected = [
        ("outbox-dead-attempts", "1"),
        ("outbox-dead-offset", "0"),
        ("outbox-dead-partition", "0"),
        ("outbox-dead-reason", "no such customer"),
        ("outbox-dead-topic", group.topic.as_str()),
    ];
    for (name, value) in expected {
        assert_eq!(letters[0].get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(letters[0].get("outbox-id"), Some(&claimed[0].id.to_string()));
}

/// The headers of what is on the dead-letter topic, as far as they are texts.
async fn dead_letters(group: &Group) -> Vec<BTreeMap<String, String>> {
    let read = |message: &rdkafka::message::BorrowedMessage<'_>| {
        let headers = message.headers().unwrap().iter();
        let texts = headers.map(|header| {
            let value = String::from_utf8_lossy(header.value.unwrap_or_default()).into_owned();
            (header.key.to_owned(), value)
        });
        texts.collect()
    };
    records(&group.bootstrap, group.dead_letters.as_str(), read)
        .await
        .into_iter()
        .flatten()
        .collect()
}

/// What handlers have seen, in order.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Id>>>);

impl Seen {
    fn all(&self) -> Vec<Id> {
        self.0.lock().unwrap().clone()
    }

    fn distinct(&self) -> usize {
        self.all()
            .into_iter()
            .collect::<std::collections::HashSet<_>>()
            .len()
    }
}

async fn see(event: Counted, context: Context) -> Result<(), HandlerError> {
    context.state::<Seen>().unwrap().0.lock().unwrap().push(event.id);
    Ok(())
}

const SOME_ID: Option<&[u8]> = Some(b"0198c0de-0000-7000-8000-000000000001");

fn headers(pairs: &[(&str, Option<&[u8]>)]) -> OwnedHeaders {
    let insert = |headers: OwnedHeaders, (key, value): &(&str, Option<&[u8]>)| {
        headers.insert(Header {
            key,
            value: value.as_ref().copied(),
        })
    };
    pairs.iter().fold(OwnedHeaders::new(), insert)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_records_are_dead_letters_and_the_partition_goes_on() {
    let group = Group::shared(1).await;
    let json: Option<&[u8]> = Some(b"{}");
    let good = || headers(&[("outbox-id", SOME_ID), ("outbox-event-type", Some(b"Counted"))]);
    let unknown = headers(&[("outbox-id", SOME_ID), ("outbox-event-type", Some(b"Unknown"))]);
    let with = |value| {
        headers(&[
            ("outbox-id", SOME_ID),
            ("outbox-event-type", Some(b"Counted")),
            ("trace", value),
        ])
    };
    group.publish(envelope(id(1, 0))).await;
    group.publish_raw("k", None, good()).await;
    group.publish_raw("k", Some(b"{"), good()).await;
    group.publish_raw("k", json, headers(&[("x", Some(b"y"))])).await;
    group.publish_raw("k", json, with(None)).await;
    group.publish_raw("k", json, with(Some(b"\xff"))).await;
    // An event that no handler wants is completed; one whose form its handler does not understand is dead.
    group.publish_raw("k", json, unknown).await;
    group.publish_raw("k", Some(b"[]"), good()).await;
    group.publish(envelope(id(2, 0))).await;

    let (source, seen) = (group.source(), Seen::default());
    let relay = handling(&source, Registry::new().on("see", see).state(seen.clone()));
    until(|| seen.distinct() == 2 && source.totals().dead_letters == 6).await;
    relay.shutdown().await.unwrap();
    source.close().await;

    let reasons: Vec<String> = dead_letters(&group)
        .await
        .into_iter()
        .map(|mut letter| letter.remove("outbox-dead-reason").unwrap())
        .collect();
    for expected in [
        "value is null",
        "no JSON",
        "neither the header",
        "\"trace\" is null",
        "\"trace\" is no text",
    ] {
        assert!(
            reasons.iter().any(|reason| reason.contains(expected)),
            "{expected}: {reasons:?}"
        );
    }
    assert_eq!(seen.all().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_slower_than_the_poll_interval_neither_leaves_the_group_nor_stalls_it() {
    let group = Group::shared(1).await;
    for n in 0..3 {
        group.publish(envelope(id(1, n))).await;
    }
    let settings = group.settings().with("max.poll.interval.ms", "6000");
    let source = group.source_with(&settings, SourceOptions::default());
    let seen = Seen::default();
    let slow = async |event: Counted, context: Context| {
        tokio::time::sleep(Duration::from_secs(if event.id.n == 0 { 9 } else { 0 })).await;
        see(event, context).await
    };
    let relay = handling(&source, Registry::new().on("slow", slow).state(seen.clone()));

    until(|| seen.distinct() == 3).await;
    relay.shutdown().await.unwrap();
    source.close().await;

    assert_eq!(
        seen.all(),
        [id(1, 0), id(1, 1), id(1, 2)],
        "each once: the partition was never taken away"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_buffers_pause_and_resume_and_lose_nothing() {
    let group = Group::shared(3).await;
    let all = events(600, 20);
    for id in &all {
        group.publish(envelope(*id)).await;
    }
    let options = SourceOptions::default()
        .with_buffered_events_max(20)
        .with_window_max(50);
    let (source, seen) = (group.source_with(&group.settings(), options), Seen::default());
    let relay = handling(&source, Registry::new().on("see", see).state(seen.clone()));

    until(|| seen.distinct() == all.len()).await;
    relay.shutdown().await.unwrap();
    source.close().await;

    for key in 0..20 {
        let of_key: Vec<u64> = seen
            .all()
            .iter()
            .filter(|id| id.key == key)
            .map(|id| id.n)
            .collect();
        assert!(of_key.is_sorted(), "{key}: {of_key:?}");
    }
    assert_eq!(seen.all().len(), all.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_come_and_go_skip_no_record_and_keep_the_order_of_first_deliveries() {
    let group = Group::shared(4).await;
    let (seen, all) = (Seen::default(), events(800, 16));
    let slowly = async |event: Counted, context: Context| {
        tokio::time::sleep(Duration::from_millis(5)).await;
        see(event, context).await
    };
    let registry = || Registry::new().on("slowly", slowly).state(seen.clone());
    let stays = group.source();
    let running = handling(&stays, registry());
    let publishing = async {
        for id in &all {
            group.publish(envelope(*id)).await;
        }
    };
    let churn = async {
        for _ in 0..3 {
            let guest = group.source();
            let relay = handling(&guest, registry());
            tokio::time::sleep(Duration::from_secs(2)).await;
            relay.shutdown().await.unwrap();
            guest.close().await;
        }
    };

    tokio::join!(publishing, churn);
    until(|| seen.distinct() == all.len()).await;
    running.shutdown().await.unwrap();
    stays.close().await;

    let (mut first, mut highest) = (std::collections::HashSet::new(), BTreeMap::<u32, u64>::new());
    for id in seen.all().into_iter().filter(|id| first.insert(*id)) {
        let highest = highest.entry(id.key).or_insert(id.n);
        assert!(id.n >= *highest, "{id:?} came first behind {highest}");
        *highest = id.n;
    }
}
