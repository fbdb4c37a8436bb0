//! A consumer to which nothing comes any more, without a word of why: it is made anew.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Context, HandlerError};
use outbox_inproc::Registry;
use outbox_kafka::SourceOptions;
use support::event::{Counted, Id, envelope, id};
use support::group::{Group, handling};
use support::silent::Silent;
use support::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_hears_nothing_more_is_made_anew_and_goes_on() {
    let (silent, broker) = Silent::before_a_broker(3).await;
    let group = Group::new(broker.bootstrap(), 1).await;
    for n in 0..40 {
        group.publish(envelope(id(n, 0))).await;
    }
    // A few records at a time, so that it knows of more; and by itself it would wait for longer than this test.
    let settings = group
        .settings()
        .with("fetch.message.max.bytes", "1000")
        .with("socket.timeout.ms", "300000");
    let options = SourceOptions::default().with_stall_timeout(Duration::from_secs(10));
    let source = group.source_with(&settings, options);
    let seen = Arc::new(Mutex::new(HashSet::<Id>::new()));
    let see = {
        let seen = Arc::clone(&seen);
        move |event: Counted, _: Context| {
            seen.lock().unwrap().insert(event.id);
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let relay = handling(&source, Registry::new().on("see", see));
    until(|| silent.swallowed() > 0).await;
    let before = seen.lock().unwrap().len();
    assert!(before < 40, "all of it came before the silence");

    until(|| seen.lock().unwrap().len() == 40).await;

    assert!(silent.readers() > 1, "it goes on over another connection");
    relay.shutdown().await.unwrap();
    source.close().await;
    assert_eq!(group.committed(1).await, [40]);
}
