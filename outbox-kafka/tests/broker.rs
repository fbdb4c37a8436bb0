//! The dispatcher on a real broker.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Delivered, Dispatcher, FailureKind, RunResult};
use outbox_dev::{DevKafka, KafkaOptions, KafkaStop};
use outbox_kafka::{
    CloudEvents, DispatcherOptions, Format, IncomingRecord, KafkaDispatcher, KafkaSettings, RecordMapping,
    RecordReader, TopicName, TopicRule,
};
use rdkafka::message::{Headers, Message};
use support::cluster::{alter_topic, create_topic, delete_topic, log, records, shared, unique};
use support::deliver::{delivery, until_delivered};
use support::event::{Id, envelope, envelope_of_size, events, id};
use support::relay::{Pace, relay};
use support::table::Table;
use support::until;
use support::verdict::{assert_delivered, judge};
use tokio::time::Instant;

fn mapping(topic: &str) -> RecordMapping {
    RecordMapping::new(TopicRule::fixed(TopicName::new(topic).unwrap()))
}

fn options() -> DispatcherOptions {
    DispatcherOptions::default().with_delivery_timeout(Duration::from_secs(5))
}

fn dispatcher(bootstrap: &str, topic: &str) -> KafkaDispatcher {
    KafkaDispatcher::new(&KafkaSettings::new(bootstrap), mapping(topic), options()).unwrap()
}

fn kinds(results: &RunResult) -> Vec<Result<Delivered, FailureKind>> {
    results
        .iter()
        .map(|result| result.as_ref().copied().map_err(|failure| failure.kind))
        .collect()
}

fn flat(log: Vec<Vec<Id>>) -> Vec<Id> {
    log.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_format_comes_back_from_a_real_topic_as_it_was() {
    let bootstrap = shared().await.bootstrap();
    let settings = CloudEvents::new("/test").unwrap();
    for format in [
        Format::Plain,
        Format::CloudEventsBinary(settings.clone()),
        Format::CloudEventsStructured(settings),
    ] {
        let topic = unique("formats");
        create_topic(bootstrap, &topic, 1, &[]).await;
        let mapping = mapping(&topic).with_format(format);
        let dispatcher = KafkaDispatcher::new(&KafkaSettings::new(bootstrap), mapping, options()).unwrap();
        let mut sent = (*envelope(id(1, 1))).clone();
        sent.headers.insert("empty".into(), String::new());
        sent.headers.insert("größe".into(), "µ\0\u{7}".into());
        sent.ordering_key = None;
        let sent = Arc::new(sent);

        assert_eq!(
            dispatcher.dispatch(&delivery(Arc::clone(&sent))).await.unwrap(),
            Delivered::Handled
        );

        let read = |message: &rdkafka::message::BorrowedMessage<'_>| {
            let headers = message.headers().unwrap();
            let headers: Vec<_> = headers.iter().map(|header| (header.key, header.value)).collect();
            let record = IncomingRecord::new(message.payload(), &headers);
            RecordReader::new().envelope(&record).unwrap()
        };
        assert_eq!(records(bootstrap, &topic, read).await, [[(*sent).clone()]]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_has_the_time_of_writing_however_old_or_early_its_event() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("time");
    create_topic(bootstrap, &topic, 1, &[]).await;
    let dispatcher = dispatcher(bootstrap, &topic);
    let now = jiff::Timestamp::now();
    let hours = |hours| jiff::SignedDuration::from_hours(hours);

    for (n, created_at) in [now - hours(24 * 30), now + hours(48)].into_iter().enumerate() {
        let mut early_or_late = (*envelope(id(1, n as u64))).clone();
        early_or_late.created_at = created_at;
        dispatcher
            .dispatch(&delivery(Arc::new(early_or_late)))
            .await
            .unwrap();
    }

    let times = records(bootstrap, &topic, |message| {
        message.timestamp().to_millis().unwrap()
    })
    .await;
    assert_eq!(times[0].len(), 2);
    for time in &times[0] {
        let written = jiff::Timestamp::from_millisecond(*time).unwrap();
        assert!(
            (written - hours(1)..written + hours(1)).contains(&now),
            "{written}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_over_the_topics_limit_is_rejected_alone_with_the_brokers_word() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("small");
    create_topic(bootstrap, &topic, 1, &[("max.message.bytes", "3000")]).await;
    let dispatcher = dispatcher(bootstrap, &topic);
    let run: Vec<_> = (0..20)
        .map(|n| delivery(envelope_of_size(id(1, n), if n == 7 { 5000 } else { 300 })))
        .collect();

    let first = dispatcher.dispatch_run(&run).await;
    let second = dispatcher.dispatch_run(&run[8..]).await;

    assert_eq!(first.len(), 8);
    let failure = first[7].as_ref().unwrap_err();
    assert_eq!(failure.kind, FailureKind::Reject);
    assert!(
        failure.error.to_string().contains("too large"),
        "{}",
        failure.error
    );
    assert_eq!(kinds(&second), vec![Ok(Delivered::Handled); 12]);
    let expected: Vec<Id> = (0..20).filter(|n| *n != 7).map(|n| id(1, n)).collect();
    assert_eq!(flat(log(bootstrap, &topic).await), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_topic_costs_its_own_events_an_attempt_and_stops_no_other() {
    let bootstrap = shared().await.bootstrap();
    let (there, missing) = (unique("there"), unique("missing"));
    create_topic(bootstrap, &there, 3, &[]).await;
    let names = [there.clone(), missing.clone()];
    let rule = TopicRule::by(move |envelope| {
        let key = envelope.ordering_key.as_ref().map_or("0", |key| key.as_str());
        names[usize::from(key != "0")].clone()
    });
    let settings = KafkaSettings::new(bootstrap);
    let dispatcher = KafkaDispatcher::new(&settings, RecordMapping::new(rule), options()).unwrap();

    let failed = dispatcher
        .dispatch(&delivery(envelope(id(1, 0))))
        .await
        .unwrap_err();
    let delivered = dispatcher.dispatch(&delivery(envelope(id(0, 0)))).await;

    assert_eq!(failed.kind, FailureKind::Retry);
    assert!(failed.error.to_string().contains(&missing), "{}", failed.error);
    assert_eq!(delivered.unwrap(), Delivered::Handled);

    create_topic(bootstrap, &missing, 1, &[]).await;
    until_delivered(&dispatcher, id(1, 0)).await;
    assert_eq!(flat(log(bootstrap, &missing).await), [id(1, 0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_deleted_under_way_is_that_topics_trouble() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("doomed");
    create_topic(bootstrap, &topic, 1, &[]).await;
    let dispatcher = dispatcher(bootstrap, &topic);
    // A new topic may not be known yet to the broker that is asked.
    until_delivered(&dispatcher, id(1, 0)).await;

    delete_topic(bootstrap, &topic).await;
    let failed = dispatcher
        .dispatch(&delivery(envelope(id(1, 1))))
        .await
        .unwrap_err();
    create_topic(bootstrap, &topic, 1, &[]).await;
    until_delivered(&dispatcher, id(1, 1)).await;

    assert_eq!(failed.kind, FailureKind::Retry, "{failed:?}");
    assert!(failed.error.to_string().contains(&topic), "{failed:?}");
    assert_eq!(flat(log(bootstrap, &topic).await), [id(1, 1)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_at_a_producers_first_record_lose_nothing() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("replicas");
    create_topic(bootstrap, &topic, 2, &[("min.insync.replicas", "2")]).await;
    let events = events(500, 10);
    let table = Arc::new(Mutex::new(Table::new(&events)));
    let relay = relay(
        Arc::new(dispatcher(bootstrap, &topic)),
        Arc::clone(&table),
        Pace::default(),
        Duration::from_secs(60),
    );
    let cure = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        alter_topic(bootstrap, &topic, "min.insync.replicas", "1").await;
    };

    tokio::join!(relay, cure);

    assert_delivered("too few replicas", (bootstrap, &topic), &table, 500).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_charges_nobody_and_ends_without_a_restart() {
    let broker = DevKafka::start_own().await.unwrap();
    let topic = unique("outage");
    create_topic(broker.bootstrap(), &topic, 3, &[]).await;
    broker.stop(KafkaStop::Kill).await.unwrap();
    // Made while there is no broker.
    let dispatcher = dispatcher(broker.bootstrap(), &topic);

    let start = Instant::now();
    let failed = dispatcher
        .dispatch(&delivery(envelope(id(1, 0))))
        .await
        .unwrap_err();
    let took = start.elapsed();
    broker.resume().await.unwrap();
    until_delivered(&dispatcher, id(1, 0)).await;
    broker.stop(KafkaStop::Orderly).await.unwrap();
    let failed_again = dispatcher
        .dispatch(&delivery(envelope(id(1, 1))))
        .await
        .unwrap_err();
    broker.resume().await.unwrap();
    until_delivered(&dispatcher, id(1, 1)).await;

    assert_eq!(
        (failed.kind, failed_again.kind),
        (FailureKind::Outage, FailureKind::Outage)
    );
    assert!(
        took >= Duration::from_secs(4) && took < Duration::from_secs(25),
        "{took:?}"
    );
    let verdict = judge(
        &log(broker.bootstrap(), &topic).await,
        &[id(1, 0), id(1, 1)].into(),
    );
    verdict.assert_sound("outage");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_events_keep_their_order_while_the_broker_is_killed_and_restarted() {
    let broker = DevKafka::start_own().await.unwrap();
    let topic = unique("chaos");
    create_topic(broker.bootstrap(), &topic, 12, &[]).await;
    let table = Arc::new(Mutex::new(Table::new(&events(10_000, 200))));
    let pace = Pace {
        run_max: 5,
        pause: Duration::from_millis(20),
        ..Pace::default()
    };
    let dispatcher = Arc::new(dispatcher(broker.bootstrap(), &topic));
    let relay = tokio::spawn(relay(
        dispatcher,
        Arc::clone(&table),
        pace,
        Duration::from_secs(240),
    ));

    for (after, how) in [
        (1000, KafkaStop::Kill),
        (4000, KafkaStop::Orderly),
        (7000, KafkaStop::Kill),
    ] {
        until(|| table.lock().unwrap().completed().len() >= after).await;
        broker.stop(how).await.unwrap();
        broker.resume().await.unwrap();
    }
    relay.await.unwrap();

    let place = (broker.bootstrap(), topic.as_str());
    assert_delivered("kills and restarts", place, &table, 10_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_takes_smaller_batches_than_topics_allow_is_no_trouble() {
    let options = KafkaOptions::default().with_properties("message.max.bytes=20000");
    let broker = DevKafka::start_with(options).await.unwrap();
    let topic = unique("batches");
    create_topic(broker.bootstrap(), &topic, 2, &[]).await;
    let table = Arc::new(Mutex::new(Table::new(&events(2000, 20))));

    let dispatcher = Arc::new(dispatcher(broker.bootstrap(), &topic));
    relay(
        dispatcher,
        Arc::clone(&table),
        Pace::default(),
        Duration::from_secs(60),
    )
    .await;

    let completed = table.lock().unwrap().completed();
    let verdict = judge(&log(broker.bootstrap(), &topic).await, &completed);
    verdict.assert_sound("small batches");
    assert_eq!((completed.len(), verdict.duplicates), (2000, 0));
}
