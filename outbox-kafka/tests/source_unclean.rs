//! A log that loses its end while its consumer is there, as when a replica becomes leader that did not have all of it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::collections::HashSet;
use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use outbox_core::{EventId, Source};
use outbox_dev::{DevKafka, KafkaOptions, KafkaStop};
use outbox_kafka::KafkaSource;
use support::event::{envelope, id};
use support::group::{Group, claim_in_all, completed, request};
use tokio::time::Instant;

/// Cuts what follows the first batches of a partition off. Its broker is down.
fn lose_end(partition: &Path, batches: usize) {
    let log = partition.join("00000000000000000000.log");
    let file = OpenOptions::new().read(true).write(true).open(log).unwrap();
    let mut end = 0;
    for _ in 0..batches {
        // A batch is its offset, the length of the rest, and the rest.
        let mut length = [0; 4];
        file.read_exact_at(&mut length, end + 8).unwrap();
        end += 12 + u64::from(u32::from_be_bytes(length));
    }
    assert!(end < file.metadata().unwrap().len(), "there is nothing to lose");
    file.set_len(end).unwrap();
    // The broker makes them anew from what it finds.
    for entry in std::fs::read_dir(partition).unwrap() {
        let path = entry.unwrap().path();
        let derived = path
            .extension()
            .is_some_and(|kind| ["index", "timeindex", "snapshot"].iter().any(|it| kind == *it));
        if derived {
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Claims and completes until all of these were there.
async fn complete_all(source: &KafkaSource, mut missing: HashSet<EventId>) {
    let patience = Instant::now() + Duration::from_secs(120);
    while !missing.is_empty() {
        assert!(Instant::now() < patience, "{} do not come", missing.len());
        let claimed = source.claim(request(100)).await.unwrap_or_default();
        if claimed.is_empty() {
            source.wait(Duration::from_millis(100)).await;
        }
        for event in &claimed {
            missing.remove(&event.id);
        }
        let settled = source.settle(claimed.iter().map(completed).collect()).await;
        settled.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_after_a_log_has_lost_its_end_is_handled_and_so_is_what_was_read_before() {
    let broker = DevKafka::start_with(KafkaOptions::default()).await.unwrap();
    let group = Group::new(broker.bootstrap(), 1).await;
    for n in 0..10 {
        group.publish(envelope(id(n, 0))).await;
    }
    // It stays a member over the restart: with a new assignment everything would begin anew anyway.
    let settings = group.settings().with("session.timeout.ms", "300000");
    let source = group.source_with(&settings, Default::default());
    let claimed = claim_in_all(&source, 10).await;
    let (done, open): (Vec<_>, Vec<_>) = claimed.iter().partition(|event| event.position.0 < 7);
    source
        .settle(done.into_iter().map(completed).collect())
        .await
        .unwrap();

    broker.stop(KafkaStop::Kill).await.unwrap();
    let partition = format!("{}-0", group.topic.as_str());
    lose_end(&broker.data_dir().unwrap().join(partition), 5);
    broker.resume().await.unwrap();
    let mut published = HashSet::new();
    for n in 100..110 {
        let event = envelope(id(n, 0));
        published.insert(event.id);
        group.publish(event).await;
    }

    complete_all(&source, published).await;
    // The log has them no more, and they were in hand.
    let late = source.settle(open.into_iter().map(completed).collect()).await;
    assert_eq!(late.unwrap().lost, []);
    source.close().await;
    assert_eq!(group.committed(1).await, [15]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_offset_of_a_group_goes_back_with_a_log_to_which_nothing_is_written() {
    let broker = DevKafka::start_with(KafkaOptions::default()).await.unwrap();
    let group = Group::new(broker.bootstrap(), 1).await;
    let publish = async |numbers: Range<u32>| {
        let mut published = HashSet::new();
        for n in numbers {
            let event = envelope(id(n, 0));
            published.insert(event.id);
            group.publish(event).await;
        }
        published
    };
    let first = group.source();
    complete_all(&first, publish(0..5).await).await;
    first.close().await;
    // With the default nothing is missed anyway: what is left of the log is read again.
    let settings = group
        .settings()
        .with("session.timeout.ms", "300000")
        .with("auto.offset.reset", "latest");
    let source = group.source_with(&settings, Default::default());
    complete_all(&source, publish(5..10).await).await;
    until_committed(&group, 10).await;

    broker.stop(KafkaStop::Kill).await.unwrap();
    let partition = format!("{}-0", group.topic.as_str());
    lose_end(&broker.data_dir().unwrap().join(partition), 7);
    broker.resume().await.unwrap();

    until_committed(&group, 7).await;
    source.close().await;
}

async fn until_committed(group: &Group, offset: i64) {
    let patience = Instant::now() + Duration::from_secs(120);
    while group.committed(1).await != [offset] {
        assert!(Instant::now() < patience, "{offset} is not committed");
    }
}
