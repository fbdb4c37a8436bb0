//! A broker that is away for a minute: memory stays flat, nobody is charged, and all goes on by itself.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_dev::{DevKafka, KafkaStop};
use outbox_kafka::{DispatcherOptions, KafkaDispatcher, KafkaSettings, RecordMapping, TopicName, TopicRule};
use support::cluster::{create_topic, unique};
use support::event::events;
use support::relay::{Pace, relay};
use support::table::Table;
use support::until;
use support::verdict::assert_delivered;

/// What this process has in memory, in kibibytes.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute_without_a_broker_costs_no_attempt_and_no_memory() {
    let broker = DevKafka::start_own().await.unwrap();
    let topic = unique("minute");
    create_topic(broker.bootstrap(), &topic, 6, &[]).await;
    let mapping = RecordMapping::new(TopicRule::fixed(TopicName::new(&topic).unwrap()));
    let options = DispatcherOptions::default().with_delivery_timeout(Duration::from_secs(5));
    let dispatcher = KafkaDispatcher::new(&KafkaSettings::new(broker.bootstrap()), mapping, options).unwrap();
    let table = Arc::new(Mutex::new(Table::new(&events(20_000, 100))));
    let relay = tokio::spawn(relay(
        Arc::new(dispatcher),
        Arc::clone(&table),
        Pace {
            pause: Duration::from_millis(20),
            ..Pace::default()
        },
        Duration::from_secs(180),
    ));
    until(|| table.lock().unwrap().completed().len() >= 3_000).await;

    broker.stop(KafkaStop::Kill).await.unwrap();
    // One whole delivery, so that what an outage needs at all is there.
    tokio::time::sleep(Duration::from_secs(12)).await;
    let before = resident_kib();
    tokio::time::sleep(Duration::from_secs(48)).await;
    let after = resident_kib();
    broker.resume().await.unwrap();
    relay.await.unwrap();

    let place = (broker.bootstrap(), topic.as_str());
    assert_delivered("a minute without a broker", place, &table, 20_000).await;
    assert!(
        after < before + 20 * 1024,
        "memory grows: {before} KiB, then {after} KiB"
    );
}
