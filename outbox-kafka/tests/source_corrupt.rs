//! A batch that fails its checksum, as on a disk that rots: a broker hands it out as it is.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use outbox_core::Source;
use outbox_dev::{DevKafka, KafkaOptions};
use support::event::{envelope, id};
use support::group::{Group, claim_in_all, completed, request};
use tokio::time::Instant;

/// Turns the last byte of a batch around.
fn turn_last_byte(partition: &Path, batch: usize) {
    let log = partition.join("00000000000000000000.log");
    let file = OpenOptions::new().read(true).write(true).open(log).unwrap();
    let mut end = 0;
    for _ in 0..=batch {
        // A batch is its offset, the length of the rest, and the rest.
        let mut length = [0; 4];
        file.read_exact_at(&mut length, end + 8).unwrap();
        end += 12 + u64::from(u32::from_be_bytes(length));
    }
    let mut last = [0; 1];
    file.read_exact_at(&mut last, end - 1).unwrap();
    file.write_all_at(&[!last[0]], end - 1).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_fails_its_checksum_is_waited_for_and_nothing_comes_twice_nor_from_behind_it() {
    let broker = DevKafka::start_with(KafkaOptions::default()).await.unwrap();
    let group = Group::new(broker.bootstrap(), 1).await;
    for n in 0..10 {
        group.publish(envelope(id(n, 0))).await;
    }
    let partition = format!("{}-0", group.topic.as_str());
    let partition = broker.data_dir().unwrap().join(partition);
    turn_last_byte(&partition, 5);
    let settings = group.settings().with("check.crcs", "true");
    let source = group.source_with(&settings, Default::default());

    let before = claim_in_all(&source, 5).await;
    source
        .settle(before.iter().map(completed).collect())
        .await
        .unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        let more = source.claim(request(10)).await.unwrap_or_default();
        assert_eq!(more.len(), 0, "something came again, or from behind the batch");
        source.wait(Duration::from_millis(100)).await;
    }
    assert_eq!(group.committed(1).await, [5]);

    turn_last_byte(&partition, 5);
    let rest = claim_in_all(&source, 5).await;
    assert_eq!(rest[0].position.0, 5);
    source.settle(rest.iter().map(completed).collect()).await.unwrap();
    source.close().await;
    assert_eq!(group.committed(1).await, [10]);
}
