//! Handlers that block their thread: nobody can end them, so the relay goes on without them.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::MemorySource;
use outbox_core::{
    Delivered, Delivery, Dispatcher, Envelope, EventType, Failure, Policy, Relay, RelayBuilder, RetryPolicy,
    RunResult,
};

use crate::world::{Scripted, Seen, event, keyed, source, until};

/// Blocks the thread of the first delivery of a type `Blocks` until it is opened, or dropped.
struct Gate {
    wait: Mutex<Receiver<()>>,
    passed: AtomicBool,
}

impl Gate {
    fn new() -> (Sender<()>, Arc<Self>) {
        let (open, wait) = channel();
        let gate = Self {
            wait: Mutex::new(wait),
            passed: AtomicBool::new(false),
        };
        (open, Arc::new(gate))
    }

    fn pass(&self) {
        if !self.passed.swap(true, Ordering::SeqCst) {
            let _ = self.wait.lock().unwrap().recv();
        }
    }
}

fn blocking(gate: &Arc<Gate>) -> Scripted {
    let gate = gate.clone();
    Scripted::default().on("Blocks", move |_| {
        let gate = gate.clone();
        async move {
            gate.pass();
            Ok(())
        }
    })
}

/// Takes runs whole, and delivers them one by one.
struct Whole(Arc<Scripted>);

#[async_trait]
impl Dispatcher for Whole {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.0.dispatch(delivery).await
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        self.0.dispatch_run(run).await
    }

    fn pipelines(&self) -> bool {
        true
    }

    fn policy(&self, event_type: &EventType) -> Policy {
        Dispatcher::policy(&*self.0, event_type)
    }
}

fn relay(source: &Arc<MemorySource>, dispatcher: Arc<dyn Dispatcher>, attempts: u32) -> RelayBuilder {
    let attempts = NonZeroU32::new(attempts).unwrap();
    Relay::builder(source.clone(), dispatcher)
        .handler_timeout(Duration::from_millis(100))
        .shutdown_grace(Duration::ZERO)
        .retry(RetryPolicy::fixed(attempts, Duration::from_millis(10)))
}

fn seen(envelope: &Envelope, attempt: u32) -> Seen {
    Seen {
        id: envelope.id,
        attempt,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_is_stuck_and_takes_no_place() {
    let source = source();
    let (open, gate) = Gate::new();
    let policy = Policy::default().with_concurrency(NonZeroU32::MIN);
    let dispatcher = Arc::new(blocking(&gate).policy("Blocks", policy));
    source.publish_envelope(event("Blocks"));
    let relay = relay(&source, dispatcher.clone(), 10)
        .concurrency(NonZeroU32::MIN)
        .build()
        .unwrap()
        .spawn();
    let health = relay.health();
    until("it counts as stuck", || health.stuck() == 1).await;
    // Its own type is limited to one place, and still goes on.
    until("it is tried again", || dispatcher.seen().len() == 2).await;
    for _ in 0..20 {
        source.publish_envelope(event("Plain"));
    }

    until("the others are delivered", || source.counts().completed == 21).await;
    assert_eq!(health.stuck(), 1);
    let report = relay.shutdown().await.unwrap();

    assert_eq!(report.stuck, 1);
    assert_eq!(source.counts().held, 0);
    drop(open);
}

/// Invariants 25 and 26.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_blocking_handler_says_late_counts_for_nothing_and_its_run_does_not_go_on() {
    for (whole, attempts) in [(false, 10), (false, 1), (true, 10)] {
        let source = source();
        let (open, gate) = Gate::new();
        let scripted = Arc::new(blocking(&gate));
        let dispatcher: Arc<dyn Dispatcher> = match whole {
            true => Arc::new(Whole(scripted.clone())),
            false => scripted.clone(),
        };
        let (first, second) = (keyed("Blocks", "k"), keyed("Plain", "k"));
        source.publish_envelope(first.clone());
        source.publish_envelope(second.clone());
        let relay = relay(&source, dispatcher, attempts).build().unwrap().spawn();
        let health = relay.health();

        // While it blocks, its key goes on without it: no earlier than its next try, or its end.
        until("all have their end", || source.counts().pending == 0).await;
        assert_eq!(health.stuck(), 1);
        open.send(()).unwrap();
        until("the late result is there", || health.stuck() == 0).await;
        relay.shutdown().await.unwrap();

        assert_eq!(source.failed_attempts(first.id), Some(1));
        assert_eq!(source.counts().failed, usize::from(attempts == 1));
        let order = match attempts {
            1 => vec![seen(&first, 1), seen(&second, 1)],
            _ => vec![seen(&first, 1), seen(&first, 2), seen(&second, 1)],
        };
        assert_eq!(scripted.seen(), order, "whole runs: {whole}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_that_hangs_gives_back_all_its_places() {
    let source = source();
    let (open, gate) = Gate::new();
    let policy = Policy::default().with_concurrency(NonZeroU32::MIN);
    let dispatcher = Arc::new(blocking(&gate).policy("Limited", policy));
    source.publish_envelope(keyed("Blocks", "k"));
    source.publish_envelope(keyed("Limited", "k"));
    let relay = relay(&source, dispatcher, 10).build().unwrap().spawn();
    let health = relay.health();
    until("it counts as stuck", || health.stuck() == 1).await;

    source.publish_envelope(event("Limited"));

    until("all are delivered", || source.counts().completed == 3).await;
    assert_eq!(health.stuck(), 1);
    relay.shutdown().await.unwrap();
    drop(open);
}

/// The relay's loop would be woken on the thread that is about to be blocked, where nobody else can run it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_right_after_another_has_ended_does_not_block_the_relay() {
    for before in ["Waits", "Computes"] {
        let source = source();
        let (open, gate) = Gate::new();
        let short = Duration::from_millis(20);
        let dispatcher = blocking(&gate)
            .on("Waits", move |_| async move {
                tokio::time::sleep(short).await;
                Ok(())
            })
            .on("Computes", move |_| async move {
                std::thread::sleep(short);
                Ok(())
            });
        source.publish_envelope(keyed(before, "k"));
        source.publish_envelope(keyed("Blocks", "k"));
        let relay = relay(&source, Arc::new(dispatcher), 10).build().unwrap().spawn();

        until("both are delivered", || source.counts().completed == 2).await;
        relay.shutdown().await.unwrap();
        drop(open);
    }
}
