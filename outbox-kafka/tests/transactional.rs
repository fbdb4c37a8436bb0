//! The dispatcher that writes in transactions, on a real broker.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Delivered, Dispatcher, FailureKind};
use outbox_dev::{DevKafka, KafkaStop};
use outbox_kafka::{
    DispatcherOptions, KafkaSettings, RecordMapping, TopicName, TopicRule, TransactionalDispatcher,
};
use rdkafka::message::Message;
use support::cluster::{create_topic, delete_topic, log, records, shared, unique};
use support::deliver::{delivery, until_delivered};
use support::event::{envelope, envelope_of_size, events, id};
use support::relay::{Pace, relay};
use support::table::Table;
use support::until;
use support::verdict::assert_delivered;

fn dispatcher(bootstrap: &str, topic: &str, transactional_id: &str) -> TransactionalDispatcher {
    let mapping = RecordMapping::new(TopicRule::fixed(TopicName::new(topic).unwrap()));
    let options = DispatcherOptions::default().with_delivery_timeout(Duration::from_secs(5));
    TransactionalDispatcher::new(&KafkaSettings::new(bootstrap), mapping, options, transactional_id).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_over_the_limit_is_rejected_alone_and_what_was_taken_back_is_not_seen() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("limit");
    create_topic(bootstrap, &topic, 1, &[("max.message.bytes", "10000")]).await;
    let dispatcher = dispatcher(bootstrap, &topic, &topic);
    until_delivered(&dispatcher, id(0, 0)).await;
    let run = [
        delivery(envelope(id(1, 0))),
        delivery(envelope_of_size(id(1, 1), 50_000)),
        delivery(envelope(id(1, 2))),
    ];
    let other = delivery(envelope(id(2, 0)));

    let (run, other) = tokio::join!(dispatcher.dispatch_run(&run), dispatcher.dispatch(&other));

    let kinds: Vec<_> = run
        .into_iter()
        .map(|result| result.map_err(|failure| failure.kind))
        .collect();
    assert_eq!(kinds, [Ok(Delivered::Handled), Err(FailureKind::Reject)]);
    assert_eq!(other.unwrap(), Delivered::Handled);
    let mut seen = log(bootstrap, &topic).await.remove(0);
    seen.sort();
    assert_eq!(seen, [id(0, 0), id(1, 0), id(2, 0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_longer_than_the_clients_queue_takes_several_transactions() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("queue");
    create_topic(bootstrap, &topic, 1, &[]).await;
    let mapping = RecordMapping::new(TopicRule::fixed(TopicName::new(&topic).unwrap()));
    let options = DispatcherOptions::default().with_queue_messages_max(10);
    let dispatcher =
        TransactionalDispatcher::new(&KafkaSettings::new(bootstrap), mapping, options, &topic).unwrap();
    until_delivered(&dispatcher, id(0, 0)).await;
    let run: Vec<_> = (0..25).map(|n| delivery(envelope(id(1, n)))).collect();

    let results = dispatcher.dispatch_run(&run).await;

    assert_eq!(results.len(), 25);
    for result in results {
        assert_eq!(result.unwrap(), Delivered::Handled);
    }
    let expected: Vec<_> = [id(0, 0)].into_iter().chain((0..25).map(|n| id(1, n))).collect();
    assert_eq!(log(bootstrap, &topic).await, [expected]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_deleted_under_way_costs_its_own_events_an_attempt_and_no_others() {
    let bootstrap = shared().await.bootstrap();
    let (fine, gone) = (unique("fine"), unique("gone"));
    create_topic(bootstrap, &fine, 1, &[]).await;
    create_topic(bootstrap, &gone, 1, &[]).await;
    let names = [fine.clone(), gone.clone()];
    let rule = TopicRule::by(move |envelope| {
        let key = envelope.ordering_key.as_ref().map_or("0", |key| key.as_str());
        names[usize::from(key != "0")].clone()
    });
    let settings = KafkaSettings::new(bootstrap);
    let options = DispatcherOptions::default();
    let dispatcher =
        TransactionalDispatcher::new(&settings, RecordMapping::new(rule), options, &fine).unwrap();
    until_delivered(&dispatcher, id(0, 0)).await;
    until_delivered(&dispatcher, id(1, 0)).await;
    delete_topic(bootstrap, &gone).await;

    for n in 1..4 {
        let (charged, good) = (delivery(envelope(id(1, n))), delivery(envelope(id(0, n))));
        let (charged, good) = tokio::join!(dispatcher.dispatch(&charged), dispatcher.dispatch(&good));

        let charged = charged.unwrap_err();
        assert_eq!(charged.kind, FailureKind::Retry, "{charged:?}");
        assert!(charged.error.to_string().contains(&gone), "{charged:?}");
        assert_eq!(good.unwrap(), Delivered::Handled);
    }
    let expected: Vec<_> = (0..4).map(|n| id(0, n)).collect();
    assert_eq!(log(bootstrap, &fine).await, [expected]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_stay_below_what_the_topic_takes() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("batches");
    create_topic(bootstrap, &topic, 1, &[("max.message.bytes", "20000")]).await;
    let dispatcher = dispatcher(bootstrap, &topic, &topic);
    until_delivered(&dispatcher, id(0, 0)).await;
    let run: Vec<_> = (0..100)
        .map(|n| delivery(envelope_of_size(id(1, n), 1000)))
        .collect();

    let results = dispatcher.dispatch_run(&run).await;

    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 100);
    let offsets = records(bootstrap, &topic, |message| message.offset()).await;
    // Each transaction ends in a record of its own, so that a hundred of them would be seen.
    assert!(*offsets[0].last().unwrap() < 110, "{:?}", offsets[0].last());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_fences_the_one_before_it() {
    let bootstrap = shared().await.bootstrap();
    let topic = unique("fence");
    create_topic(bootstrap, &topic, 1, &[]).await;
    let (old, new) = (
        dispatcher(bootstrap, &topic, &topic),
        dispatcher(bootstrap, &topic, &topic),
    );
    until_delivered(&old, id(1, 0)).await;

    until_delivered(&new, id(1, 1)).await;
    let fenced = old.dispatch(&delivery(envelope(id(9, 9)))).await.unwrap_err();

    assert_eq!(fenced.kind, FailureKind::Outage);
    assert!(
        fenced.error.to_string().contains("transactional id"),
        "{}",
        fenced.error
    );
    assert_eq!(log(bootstrap, &topic).await, [[id(1, 0), id(1, 1)]]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_holds_and_nothing_is_lost_while_the_broker_is_killed_and_restarted() {
    let broker = DevKafka::start_own().await.unwrap();
    let topic = unique("killed");
    create_topic(broker.bootstrap(), &topic, 6, &[]).await;
    let table = Arc::new(Mutex::new(Table::new(&events(5_000, 100))));
    let pace = Pace {
        pause: Duration::from_millis(20),
        ..Pace::default()
    };
    let relay = tokio::spawn(relay(
        Arc::new(dispatcher(broker.bootstrap(), &topic, &topic)),
        Arc::clone(&table),
        pace,
        Duration::from_secs(180),
    ));
    until(|| table.lock().unwrap().completed().len() >= 500).await;

    for how in [KafkaStop::Kill, KafkaStop::Orderly] {
        broker.stop(how).await.unwrap();
        broker.resume().await.unwrap();
    }
    relay.await.unwrap();

    let place = (broker.bootstrap(), topic.as_str());
    assert_delivered("a broker that is killed and restarted", place, &table, 5_000).await;
}
