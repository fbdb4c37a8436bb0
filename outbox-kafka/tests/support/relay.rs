//! A relay's loop over a table in memory: claims, dispatches runs concurrently, settles each as it ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{Delivery, Dispatcher};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::event::{Id, envelope};
use super::table::Table;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// The most events in flight.
    pub(crate) concurrency: usize,
    /// The most events of a key in one run.
    pub(crate) run_max: usize,
    pub(crate) lease: Duration,
    /// What the relay allows a delivery.
    pub(crate) timeout: Duration,
    /// A pause between claims, so that faults meet a stream and not a heap.
    pub(crate) pause: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            concurrency: 500,
            run_max: 100,
            lease: Duration::from_secs(30),
            timeout: Duration::from_secs(20),
            pause: Duration::ZERO,
        }
    }
}

/// Runs until every event is completed or dead, at most for `limit`.
pub(crate) async fn relay(
    dispatcher: Arc<dyn Dispatcher>,
    table: Arc<Mutex<Table>>,
    pace: Pace,
    limit: Duration,
) {
    let (start, mut in_flight, mut runs) = (Instant::now(), 0, JoinSet::new());
    while start.elapsed() < limit && !table.lock().unwrap().is_finished() {
        let room = pace.concurrency - in_flight;
        let claimed = table.lock().unwrap().claim(room, pace.run_max, pace.lease);
        for (token, ids) in claimed {
            in_flight += ids.len();
            runs.spawn(deliver(
                Arc::clone(&dispatcher),
                Arc::clone(&table),
                token,
                ids,
                pace.timeout,
            ));
        }
        tokio::time::sleep(pace.pause).await;
        let next = tokio::time::timeout(Duration::from_millis(20), runs.join_next()).await;
        if let Ok(Some(count)) = next {
            in_flight -= count.unwrap();
        }
        while let Some(count) = runs.try_join_next() {
            in_flight -= count.unwrap();
        }
    }
}

/// One run and its outcomes; how many events it had.
async fn deliver(
    dispatcher: Arc<dyn Dispatcher>,
    table: Arc<Mutex<Table>>,
    token: u64,
    ids: Vec<Id>,
    timeout: Duration,
) -> usize {
    let deadline = Instant::now() + timeout;
    let run: Vec<Delivery> = ids
        .iter()
        .map(|id| Delivery::new(envelope(*id), deadline))
        .collect();
    let results = dispatcher.dispatch_run(&run).await;
    assert!(results.len() <= ids.len());
    let mut outcomes: Vec<_> = results
        .into_iter()
        .map(|result| result.map(|_| ()).map_err(|failure| failure.kind))
        .collect();
    outcomes.resize(ids.len(), Err(outbox_core::FailureKind::NotTried));
    let mut table = table.lock().unwrap();
    for (id, outcome) in ids.iter().zip(outcomes) {
        table.settle(token, *id, outcome);
    }
    ids.len()
}
