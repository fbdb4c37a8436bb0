//! Rights on a broker that checks them: its own word, and what it does not tell.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::sync::Arc;

use outbox_core::{Delivered, Dispatcher, FailureKind};
use outbox_kafka::{
    DispatcherOptions, KafkaDispatcher, KafkaSettings, RecordMapping, TopicRule, TransactionalDispatcher,
};
use support::acl::{Operation, broker, deny};
use support::cluster::{create_topic, log, unique};
use support::deliver::{delivery, until_delivered};
use support::event::{envelope, envelope_of_size, id};

/// Key 0 goes to the first topic, every other to the second.
fn mapping(topics: &[String; 2]) -> RecordMapping {
    let topics = topics.clone();
    RecordMapping::new(TopicRule::by(move |envelope| {
        let key = envelope.ordering_key.as_ref().map_or("0", |key| key.as_str());
        topics[usize::from(key != "0")].clone()
    }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forbidden_topic_costs_its_own_events_an_attempt_and_no_others() {
    let broker = broker().await;
    let bootstrap = broker.bootstrap();
    let settings = KafkaSettings::new(bootstrap);
    for operation in [Operation::Write, Operation::Describe] {
        for transactional in [false, true] {
            let topics = [unique("open"), unique("forbidden")];
            for topic in &topics {
                create_topic(bootstrap, topic, 1, &[]).await;
            }
            deny(bootstrap, &topics[1], operation).await;
            let (mapping, options) = (mapping(&topics), DispatcherOptions::default());
            let dispatcher: Arc<dyn Dispatcher> = if transactional {
                let id = topics[0].as_str();
                Arc::new(TransactionalDispatcher::new(&settings, mapping, options, id).unwrap())
            } else {
                Arc::new(KafkaDispatcher::new(&settings, mapping, options).unwrap())
            };
            until_delivered(&*dispatcher, id(0, 0)).await;

            for n in 1..4 {
                let (good, charged) = (delivery(envelope(id(0, n))), delivery(envelope(id(1, n))));
                let (good, charged) = tokio::join!(dispatcher.dispatch(&good), dispatcher.dispatch(&charged));

                let what = format!("{operation:?}, transactional: {transactional}, {n}");
                assert_eq!(good.unwrap(), Delivered::Handled, "{what}");
                let charged = charged.unwrap_err();
                assert_eq!(charged.kind, FailureKind::Retry, "{what}: {charged:?}");
                let error = charged.error.to_string();
                assert!(
                    error.contains(&topics[1]) && error.contains("uthorization"),
                    "{what}: {error}"
                );
            }
            let seen = log(bootstrap, &topics[0]).await;
            assert_eq!(seen, [(0..4).map(|n| id(0, n)).collect::<Vec<_>>()]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_over_a_limit_that_nobody_tells_fails_for_good_and_the_others_go_on() {
    let broker = broker().await;
    let bootstrap = broker.bootstrap();
    let topics = [unique("untold"), unique("beside")];
    create_topic(bootstrap, &topics[0], 1, &[("max.message.bytes", "10000")]).await;
    create_topic(bootstrap, &topics[1], 1, &[]).await;
    deny(bootstrap, &topics[0], Operation::DescribeConfigs).await;
    let settings = KafkaSettings::new(bootstrap);
    let dispatcher = TransactionalDispatcher::new(
        &settings,
        mapping(&topics),
        DispatcherOptions::default(),
        "untold",
    )
    .unwrap();
    until_delivered(&dispatcher, id(0, 0)).await;

    // The first batch is refused whole, and nobody can say because of which record.
    for (round, count, place) in [(1, 4, 2), (2, 60, 40), (3, 3, 0)] {
        let n = round * 100;
        let large: Vec<_> = (0..count)
            .map(|i| {
                delivery(envelope_of_size(
                    id(0, n + i),
                    if i == place { 50_000 } else { 300 },
                ))
            })
            .collect();
        let beside: Vec<_> = (0..50).map(|i| delivery(envelope(id(1, n + i)))).collect();
        let (large, beside) = tokio::join!(dispatcher.dispatch_run(&large), dispatcher.dispatch_run(&beside));

        let (bad, good) = large.split_last().unwrap();
        assert_eq!(
            good.iter().filter(|result| result.is_ok()).count(),
            place as usize,
            "{large:?}"
        );
        let bad = bad.as_ref().unwrap_err();
        assert_eq!(bad.kind, FailureKind::Reject, "{bad:?}");
        assert!(bad.error.to_string().contains(&topics[0]), "{bad:?}");
        assert_eq!(
            beside.iter().filter(|result| result.is_ok()).count(),
            50,
            "{beside:?}"
        );
    }
}
