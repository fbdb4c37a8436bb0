//! Relays in a world where everything fails, from a seed, on a clock that only moves when all wait.
//!
//! Each run: events of many manners, two relays that come and go, by a graceful stop or by a crash, over a source that
//! fails, hangs, loses answers and forgets hints. Then the faults end, and a last relay has to bring everything to its
//! end. What happened is checked offline.

mod handlers;
mod shaky;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use handlers::{Handlers, Manner};
use outbox_core::memory::MemorySource;
use outbox_core::{ClaimToken, Envelope, EventId, Relay, RelayBuilder, RetryPolicy};
use shaky::Shaky;
use tokio::time::{Instant, sleep};

use crate::history::{Check, History, Rules, What};
use crate::world::{event, keyed, until};

const LEASE: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(3);
const FAULTS_FOR: Duration = Duration::from_secs(90);
const MAX_ATTEMPTS: u32 = 5;
const WAIT_MAX: Duration = Duration::from_secs(5);

/// What the runs have met, over all seeds. A simulation that never meets trouble shows nothing.
#[derive(Debug, Default, Clone, Copy)]
struct Met {
    refused_settlements: usize,
    lost_extensions: usize,
    crashes: usize,
    stops: usize,
    dropped_handlers: usize,
    redeliveries: usize,
}

struct World {
    memory: MemorySource,
    history: History,
    rng: Mutex<Rng>,
    met: Mutex<Met>,
    scripts: Mutex<HashMap<EventId, Manner>>,
    calm_after: Instant,
    /// The broken twin: settlements go by event alone, as if there were no token.
    fenced: bool,
    holders: Mutex<HashMap<EventId, ClaimToken>>,
}

impl World {
    fn roll(&self, percent: u8) -> bool {
        self.rng.lock().unwrap().u8(0..100) < percent
    }

    fn fault(&self, percent: u8) -> bool {
        Instant::now() < self.calm_after && self.roll(percent)
    }

    fn millis(&self, most: u64) -> Duration {
        Duration::from_millis(self.rng.lock().unwrap().u64(0..=most))
    }

    fn meet(&self, what: impl FnOnce(&mut Met)) {
        what(&mut self.met.lock().unwrap());
    }

    fn new(seed: u64, fenced: bool) -> Arc<Self> {
        fastrand::seed(seed); // The relay's own jitter.
        Arc::new(Self {
            memory: MemorySource::new(),
            history: History::default(),
            rng: Mutex::new(Rng::with_seed(seed)),
            met: Mutex::default(),
            scripts: Mutex::default(),
            calm_after: Instant::now() + FAULTS_FOR,
            fenced,
            holders: Mutex::default(),
        })
    }

    fn manner(&self) -> Manner {
        let mut rng = self.rng.lock().unwrap();
        let try_ = rng.u32(2..=MAX_ATTEMPTS + 1);
        match rng.u8(0..14) {
            0..=3 => Manner::Quick,
            4..=6 => Manner::Slow(rng.u64(0..5_000)),
            7..=8 => Manner::FailsUntil(try_),
            9 => Manner::Rejects,
            10..=11 => Manner::PanicsUntil(try_),
            12 => Manner::HangsUntil(try_),
            _ => Manner::OutageUntil(Instant::now() + Duration::from_secs(rng.u64(0..60))),
        }
    }

    async fn publish_all(&self) {
        let count = self.rng.lock().unwrap().usize(20..120);
        for _ in 0..count {
            let key = self.rng.lock().unwrap().u8(0..8);
            let envelope: Envelope = if key < 5 {
                keyed("Any", &format!("k{key}"))
            } else {
                event("Any")
            };
            let delay = if self.roll(15) {
                self.millis(20_000)
            } else {
                Duration::ZERO
            };
            let id = envelope.id;
            let manner = self.manner();
            self.scripts.lock().unwrap().insert(id, manner);
            let key = envelope.ordering_key.as_ref().map(ToString::to_string);
            let due = Instant::now() + delay;
            self.history.note(What::Published { id, key, due });
            self.memory.publish_after(envelope, delay);
            sleep(self.millis(700)).await;
        }
    }

    fn relay(self: &Arc<Self>, relay: usize) -> RelayBuilder {
        let source = Arc::new(Shaky {
            world: self.clone(),
            relay,
        });
        let attempts = NonZeroU32::new(MAX_ATTEMPTS).unwrap();
        Relay::builder(source, Arc::new(Handlers(self.clone())))
            .concurrency(NonZeroU32::new(8).unwrap())
            .batch_size(NonZeroU32::new(20).unwrap())
            .lease(LEASE)
            .handler_timeout(Duration::from_secs(6))
            .shutdown_grace(GRACE)
            .poll_timeout(Duration::from_secs(2))
            .retry(RetryPolicy::exponential(
                attempts,
                Duration::from_millis(50),
                WAIT_MAX,
            ))
            // Crashes are frequent here, and none of them is an event's fault.
            .max_lost(NonZeroU32::new(1_000_000).unwrap())
    }

    async fn stop(&self, relay: usize, handle: outbox_core::RelayHandle) {
        self.history.note(What::StopAsked { relay });
        handle.shutdown().await.unwrap();
        let bound = GRACE + Relay::STOP_SLACK;
        self.history.note(What::Stopped { relay, bound });
        self.meet(|met| met.stops += 1);
    }

    /// One place for a relay: relays come and go in it while the faults last.
    async fn churn(self: Arc<Self>, place: usize) {
        for life in 0.. {
            if Instant::now() >= self.calm_after {
                return;
            }
            let number = place + life * 10;
            let relay = self.relay(number).build().unwrap();
            let time = self.millis(40_000);
            if self.roll(50) {
                let handle = relay.spawn();
                sleep(time).await;
                self.stop(number, handle).await;
            } else {
                let crashed = tokio::time::timeout(time, relay.run_until(std::future::pending())).await;
                assert!(crashed.is_err(), "a relay ended by itself");
                self.meet(|met| met.crashes += 1);
            }
        }
    }
}

/// One run. Returns what is wrong with it, and what it met.
fn simulate(seed: u64, fenced: bool) -> (Vec<String>, Met) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(async {
        let world = World::new(seed, fenced);
        let churn = [1, 2].map(|place| tokio::spawn(world.clone().churn(place)));
        world.publish_all().await;
        for place in churn {
            place.await.unwrap();
        }
        tokio::time::sleep_until(world.calm_after).await;

        let last = world.relay(1_000).build().unwrap().spawn();
        let memory = &world.memory;
        until("all events come to their end", || memory.counts().pending == 0).await;
        world.stop(1_000, last).await;
        let held = memory.counts().held;

        let rules = Rules {
            max_attempts: MAX_ATTEMPTS,
            wait_max: WAIT_MAX,
        };
        let mut wrong = Check::of(&world.history.records(), rules).violations;
        if held > 0 {
            wrong.push(format!("37: {held} events are held after the last stop"));
        }
        let met = *world.met.lock().unwrap();
        (wrong, met)
    })
}

#[test]
fn whatever_fails_the_invariants_hold() {
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("as the seed says") {
            eprintln!("{info}");
        }
    }));
    let seeds: u64 = std::env::var("OUTBOX_TEST_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(60);
    let mut all = Met::default();

    for seed in 0..seeds {
        let (wrong, met) = simulate(seed, true);

        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
        all.refused_settlements += met.refused_settlements;
        all.lost_extensions += met.lost_extensions;
        all.crashes += met.crashes;
        all.stops += met.stops;
        all.dropped_handlers += met.dropped_handlers;
        all.redeliveries += met.redeliveries;
    }

    println!("{all:?}");
    let least = [
        all.refused_settlements,
        all.lost_extensions,
        all.crashes,
        all.stops,
        all.dropped_handlers,
        all.redeliveries,
    ];
    assert!(!least.contains(&0), "some kind of trouble was never met: {all:?}");
}

#[test]
fn a_source_without_a_fence_is_caught() {
    let caught = (0..60).any(|seed| {
        let (wrong, _) = simulate(seed, false);
        wrong
            .iter()
            .any(|wrong| wrong.starts_with("8:") || wrong.starts_with("14:") || wrong.starts_with("23:"))
    });

    assert!(caught, "settlements by event alone went unnoticed");
}
