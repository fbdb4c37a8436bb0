//! Stopping: no new claim, time for what runs, everything else goes back, and an end in bounded time.

use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::engine::{Engine, Occurrence};
use super::work::Work;

/// Deliveries that were called off get this long to end. Longer than a worker waits before it drops one.
const CANCEL_TIME: Duration = Duration::from_secs(1);

/// Recording the last outcomes may take this long.
const RECORD_TIME: Duration = Duration::from_secs(3);

/// Stops the relay within its grace period and [`Relay::STOP_SLACK`](super::Relay::STOP_SLACK).
pub(super) async fn drain(engine: &mut Engine, hurry: CancellationToken) {
    engine.stopping = true;
    engine.stop_listening();
    // ORDER: closed first. What a claim brings that is still under way goes back too, untouched.
    engine.pool.close();
    engine.hand_back_queue();

    let grace = engine.settings.shutdown_grace;
    let running = |engine: &Engine| !engine.held.is_empty();
    let patience = async {
        tokio::select! {
            () = tokio::time::sleep(grace) => {}
            () = hurry.cancelled() => {}
        }
    };
    go_on(engine, running, patience).await;

    engine.call_off();
    go_on(engine, running, tokio::time::sleep(CANCEL_TIME)).await;

    engine.report.stuck = engine.pool.slots.running() as u64;
    // ORDER: first what has ended in the last moment, or it would be handed back and run again.
    engine.collect(Instant::now());
    engine.hand_back_held();
    engine.settling.hurry();
    let unrecorded = |engine: &Engine| !engine.settling.is_empty() || engine.claim.is_some();
    go_on(engine, unrecorded, tokio::time::sleep(RECORD_TIME)).await;
    engine.report.left_claimed = engine.settling.len() as u64;
}

/// The loop of a relay that stops: goes on while `needed`, until `end` at the latest.
async fn go_on(engine: &mut Engine, needed: impl Fn(&Engine) -> bool, end: impl Future<Output = ()>) {
    let mut end = pin!(end);
    while needed(engine) {
        engine.settle_and_extend(Instant::now());
        match engine.next(end.as_mut()).await {
            Occurrence::Stop => return,
            Occurrence::Claimed(answer) => {
                engine.claimed(answer, Instant::now());
                engine.hand_back_queue();
            }
            occurrence => engine.apply(occurrence),
        }
    }
}

impl Engine {
    /// What no worker has begun goes back at once.
    fn hand_back_queue(&mut self) {
        let mut queued = self.pool.take_queue();
        queued.extend(self.types.take_waiting());
        let now = Instant::now();
        for item in queued.into_iter().flat_map(Work::into_items) {
            self.finish(item.not_tried(), now);
        }
    }

    fn call_off(&mut self) {
        for (_, held) in &self.held {
            held.cancelled.cancel();
        }
    }

    /// What does not end goes back too; a result that comes later finds nothing to settle.
    fn hand_back_held(&mut self) {
        let now = Instant::now();
        let ids: Vec<_> = self.held.iter().map(|(_, held)| held.id).collect();
        for id in ids {
            self.hand_back(id, now);
        }
    }
}
