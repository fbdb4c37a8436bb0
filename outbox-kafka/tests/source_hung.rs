//! The consumer of a broker that hangs: its connections stay open, and nothing is answered.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::time::Duration;

use outbox_core::Source;
use outbox_dev::DevKafka;
use outbox_kafka::SourceOptions;
use support::event::{envelope, id};
use support::group::{Group, claim_in_all, completed};
use support::{revoking, until};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_in_time_while_the_broker_hangs() {
    let broker = DevKafka::start_own().await.unwrap();
    let group = Group::new(broker.bootstrap(), 1).await;
    group.publish(envelope(id(1, 0))).await;
    let source = group.source();
    let claimed = claim_in_all(&source, 1).await;
    broker.freeze().await.unwrap();
    // There is something to commit, and nobody to take it.
    source
        .settle(claimed.iter().map(completed).collect())
        .await
        .unwrap();

    let start = Instant::now();
    source.close().await;

    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    broker.thaw().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_is_given_up_at_once_while_the_broker_hangs() {
    let broker = DevKafka::start_own().await.unwrap();
    let group = Group::new(broker.bootstrap(), 2).await;
    for n in 0..20 {
        group.publish(envelope(id(n, 0))).await;
    }
    let settings = group
        .settings()
        .with("session.timeout.ms", "300000")
        .with("socket.timeout.ms", "300000");
    // Nothing is committed before it has to be.
    let options = SourceOptions::default().with_commit_interval(Duration::from_secs(3600));
    let source = group.source_with(&settings, options);
    let claimed = claim_in_all(&source, 20).await;
    // Half of it, of every partition: the rest is what is lost.
    let done = claimed.iter().step_by(2).map(completed).collect();
    source.settle(done).await.unwrap();
    let revoked = revoking::next(group.topic.as_str());

    let guest = group.source();
    let held = tokio::task::spawn_blocking(move || revoked.recv_timeout(Duration::from_secs(60)).unwrap());
    let held = held.await.unwrap();
    broker.freeze().await.unwrap();
    drop(held);

    until(|| claimed.iter().any(|claimed| claimed.lost.is_cancelled())).await;
    broker.thaw().await.unwrap();
    guest.close().await;
    source.close().await;
}
