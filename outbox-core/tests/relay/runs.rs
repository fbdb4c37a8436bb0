//! Runs of one ordering key, for dispatchers that take them whole.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::{MemorySource, Status};
use outbox_core::{Delivered, Delivery, Dispatcher, EventId, Failure, FailureKind, Relay, RunResult};

use crate::world::{keyed, source, until};

/// What a whole run meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Works,
    /// Fails at its third event, that one alone.
    FailsAtThird(FailureKind),
    Panics,
    Hangs,
    /// Breaks the contract: says nothing about any event.
    SaysNothing,
    /// Breaks the contract: more results than events.
    SaysTooMuch,
}

/// Takes runs whole, and notes how the events came.
struct Whole {
    manner: Manner,
    bad: Mutex<HashSet<EventId>>,
    runs: Mutex<Vec<usize>>,
    singles: Mutex<Vec<EventId>>,
}

#[async_trait]
impl Dispatcher for Whole {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.singles.lock().unwrap().push(delivery.envelope.id);
        assert!(!delivery.cancelled.is_cancelled(), "called off before it began");
        Ok(Delivered::Handled)
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        self.runs.lock().unwrap().push(run.len());
        let ok = || Ok(Delivered::Handled);
        match self.manner {
            Manner::Works => run.iter().map(|_| ok()).collect(),
            Manner::FailsAtThird(kind) => {
                let third = run[2].envelope.id;
                if run.len() == 10 && self.bad.lock().unwrap().insert(third) {
                    return vec![ok(), ok(), Err(Failure::new(kind, "the third"))];
                }
                run.iter().map(|_| ok()).collect()
            }
            Manner::Panics => panic!("over some event"),
            Manner::Hangs => std::future::pending().await,
            Manner::SaysNothing => Vec::new(),
            Manner::SaysTooMuch => (0..100).map(|_| ok()).collect(),
        }
    }

    fn pipelines(&self) -> bool {
        true
    }
}

struct Outcome {
    source: Arc<MemorySource>,
    ids: Vec<EventId>,
    dispatcher: Arc<Whole>,
    released: u64,
}

/// Ten events of one key through such a dispatcher, to their end.
async fn deliver(manner: Manner) -> Outcome {
    let source = source();
    let dispatcher = Arc::new(Whole {
        manner,
        bad: Mutex::default(),
        runs: Mutex::default(),
        singles: Mutex::default(),
    });
    let events: Vec<_> = (0..10).map(|_| keyed("Keyed", "k")).collect();
    let ids = events.iter().map(|event| event.id).collect();
    for event in events {
        source.publish_envelope(event);
    }
    let relay = Relay::builder(source.clone(), dispatcher.clone())
        .handler_timeout(Duration::from_secs(5))
        .build()
        .unwrap()
        .spawn();
    until("all settled", || source.counts().pending == 0).await;
    let released = relay.shutdown().await.unwrap().released;
    Outcome {
        source,
        ids,
        dispatcher,
        released,
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_delivered_whole() {
    for manner in [Manner::Works, Manner::SaysTooMuch] {
        let run = deliver(manner).await;

        assert_eq!(*run.dispatcher.runs.lock().unwrap(), [10]);
        assert_eq!(run.source.counts().completed, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_within_a_run_hands_the_rest_back_and_keeps_the_order() {
    let run = deliver(Manner::FailsAtThird(FailureKind::Retry)).await;

    assert_eq!(*run.dispatcher.runs.lock().unwrap(), [10, 8]);
    assert_eq!(run.source.counts().completed, 10);
    assert_eq!(run.released, 7);
    assert_eq!(run.source.failed_attempts(run.ids[2]), Some(1));
    assert_eq!(run.source.failed_attempts(run.ids[3]), Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_reject_within_a_run_lets_the_rest_go_on_at_once() {
    let run = deliver(Manner::FailsAtThird(FailureKind::Reject)).await;

    assert_eq!(*run.dispatcher.runs.lock().unwrap(), [10, 7]);
    assert_eq!((run.source.counts().completed, run.released), (9, 0));
    assert_eq!(run.source.status(run.ids[2]), Some(Status::Failed));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_without_a_word_is_taken_apart_in_order_and_charges_nobody() {
    for manner in [Manner::Panics, Manner::Hangs, Manner::SaysNothing] {
        let run = deliver(manner).await;

        assert_eq!(*run.dispatcher.runs.lock().unwrap(), [10], "{manner:?}");
        assert_eq!(*run.dispatcher.singles.lock().unwrap(), run.ids, "{manner:?}");
        assert_eq!(run.source.counts().completed, 10);
        for id in run.ids {
            assert_eq!(run.source.failed_attempts(id), Some(0));
        }
    }
}
