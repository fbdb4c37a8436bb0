//! The outage breaker: probes instead of attempts while a dependency is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::memory::MemorySource;
use outbox_core::telemetry::Metrics;
use outbox_core::{Breaker, EventType, FailureKind, Health, Policy, Relay, RelayHandle};

use crate::world::{Scripted, event, source, until};

/// A dependency that can be down, and how many deliveries are in it.
#[derive(Default)]
struct Remote {
    down: AtomicBool,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    calls: AtomicUsize,
}

impl Remote {
    fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Answers after a second, whatever the answer is.
    async fn call(&self) -> Result<(), FailureKind> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_inside.fetch_max(inside, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
        match self.down.load(Ordering::SeqCst) {
            true => Err(FailureKind::Outage),
            false => Ok(()),
        }
    }
}

#[derive(Default)]
struct Moves(std::sync::Mutex<Vec<Breaker>>);

impl Metrics for Moves {
    fn breaker(&self, event_type: &EventType, breaker: Breaker) {
        assert_eq!(event_type.as_str(), "Remote");
        self.0.lock().unwrap().push(breaker);
    }
}

struct Scene {
    source: Arc<MemorySource>,
    remote: Arc<Remote>,
    dispatcher: Arc<Scripted>,
    moves: Arc<Moves>,
    health: Arc<Health>,
    relay: RelayHandle,
}

fn remote_type() -> EventType {
    EventType::new("Remote").unwrap()
}

impl Scene {
    fn new(policy: Policy) -> Self {
        let (source, remote, moves) = (source(), Arc::new(Remote::default()), Arc::new(Moves::default()));
        let called = Arc::clone(&remote);
        let dispatcher = Scripted::default()
            .policy("Remote", policy)
            .on("Remote", move |_| {
                let remote = Arc::clone(&called);
                async move { remote.call().await }
            });
        let dispatcher = Arc::new(dispatcher);
        let relay = Relay::builder(source.clone(), dispatcher.clone())
            .metrics(moves.clone())
            .build()
            .unwrap();
        let health = relay.health();
        Self {
            source,
            remote,
            dispatcher,
            moves,
            health,
            relay: relay.spawn(),
        }
    }

    fn publish(&self, events: usize) {
        for _ in 0..events {
            self.source.publish_envelope(event("Remote"));
        }
    }

    fn state(&self) -> Breaker {
        self.health.breaker(&remote_type())
    }

    async fn until_state(&self, state: Breaker) {
        until(state.as_str(), || self.state() == state).await;
    }

    async fn until_completed(&self, events: usize) {
        until("all completed", || self.source.counts().completed == events).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_opens_it_probes_find_the_end_and_no_attempt_is_charged() {
    let scene = Scene::new(Policy::default());
    scene.remote.set_down(true);
    scene.publish(300);
    assert_eq!(scene.state(), Breaker::Closed);
    scene.until_state(Breaker::Open).await;
    assert_eq!(scene.health.breakers(), [(remote_type(), Breaker::Open)]);

    // The first hundred were under way together. What follows are probes.
    until("the first burst is over", || {
        scene.remote.inside.load(Ordering::SeqCst) == 0
    })
    .await;
    let burst = scene.remote.calls();
    assert!(burst <= 100, "{burst} calls, 100 at a time are allowed");
    scene.remote.most_inside.store(0, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let probes = scene.remote.calls() - burst;
    assert!((10..=200).contains(&probes), "{probes} probes in ten minutes");
    assert_eq!(
        scene.remote.most_inside.load(Ordering::SeqCst),
        1,
        "one at a time"
    );
    assert!(scene.health.is_healthy(3), "other types flow");
    scene.source.publish_envelope(event("Plain"));
    scene.until_completed(1).await;

    scene.until_state(Breaker::Open).await;
    scene.until_state(Breaker::HalfOpen).await;
    scene.remote.set_down(false);
    scene.until_state(Breaker::Closed).await;
    scene.until_completed(301).await;

    assert!(scene.health.breakers().is_empty());
    let seen = scene.dispatcher.seen();
    assert!(
        seen.iter().all(|seen| seen.attempt == 1),
        "an attempt was charged"
    );
    let moves = scene.moves.0.lock().unwrap().clone();
    assert_eq!(
        (moves.first(), moves.last()),
        (Some(&Breaker::Open), Some(&Breaker::Closed))
    );
    for pair in moves.windows(2) {
        let lawful = match pair[0] {
            Breaker::Closed => false,
            Breaker::Open => pair[1] == Breaker::HalfOpen,
            Breaker::HalfOpen => pair[1] != Breaker::HalfOpen,
        };
        assert!(lawful, "{pair:?}");
    }
    scene.relay.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_type_with_a_limit_of_its_own_keeps_it_after_an_outage() {
    let mut policy = Policy::default();
    policy.concurrency = Some(3.try_into().unwrap());
    let scene = Scene::new(policy);
    scene.remote.set_down(true);
    scene.publish(40);
    scene.until_state(Breaker::Open).await;
    scene.until_state(Breaker::HalfOpen).await;
    scene.remote.set_down(false);
    scene.until_completed(40).await;

    assert_eq!(scene.remote.most_inside.load(Ordering::SeqCst), 3);
    assert_eq!(scene.source.counts().held, 0);
    scene.relay.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keys_keep_their_order_through_an_outage() {
    let scene = Scene::new(Policy::default());
    scene.remote.set_down(true);
    let ids: Vec<_> = (0..20)
        .map(|_| {
            let envelope = crate::world::keyed("Remote", "k");
            let id = envelope.id;
            scene.source.publish_envelope(envelope);
            id
        })
        .collect();
    scene.until_state(Breaker::Open).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    scene.remote.set_down(false);
    scene.until_completed(20).await;

    let mut seen: Vec<_> = scene.dispatcher.seen().iter().map(|seen| seen.id).collect();
    seen.dedup();
    assert_eq!(seen, ids);
    scene.relay.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_fails_by_itself_ends_the_outage_and_one_that_hangs_does_not() {
    let source = source();
    let step = Arc::new(AtomicUsize::new(0));
    let steps = Arc::clone(&step);
    let dispatcher = Scripted::default().on("Remote", move |_| {
        let step = steps.load(Ordering::SeqCst);
        async move {
            match step {
                0 => Err(FailureKind::Outage),
                1 => std::future::pending().await,
                _ => Err(FailureKind::Reject),
            }
        }
    });
    let relay = Relay::builder(source.clone(), Arc::new(dispatcher))
        .build()
        .unwrap();
    let health = relay.health();
    let state = || health.breaker(&remote_type());
    for _ in 0..10 {
        source.publish_envelope(event("Remote"));
    }
    let relay = relay.spawn();
    until("open", || state() == Breaker::Open).await;
    step.store(1, Ordering::SeqCst);
    until("half-open", || state() == Breaker::HalfOpen).await;
    // Two probes run into their time limit.
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert_eq!(state(), Breaker::HalfOpen);
    assert_eq!(source.counts().failed, 0);
    step.store(2, Ordering::SeqCst);
    until("all are dead letters", || source.counts().failed == 10).await;
    assert_eq!(state(), Breaker::Closed);
    relay.shutdown().await.unwrap();
}
