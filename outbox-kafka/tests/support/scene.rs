//! A model broker, a dispatcher, a relay, and what became of the events.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outbox_core::Dispatcher;
use outbox_kafka::{DispatcherOptions, KafkaDispatcher, KafkaSettings, RecordMapping, TopicName, TopicRule};

use super::event::Id;
use super::model_broker::{ModelBroker, TOPIC};
use super::naive::NaiveDispatcher;
use super::relay::{Pace, relay};
use super::table::Table;
use super::verdict::{Verdict, judge};

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;
pub(crate) const PARTITIONS: usize = 4;

/// What happened.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) verdict: Verdict,
    pub(crate) dead: Vec<Id>,
    pub(crate) attempts: u32,
    pub(crate) finished: bool,
    pub(crate) fired: usize,
    pub(crate) taken_back: usize,
    pub(crate) took: Duration,
}

impl Run {
    /// In order, complete, and nobody harmed but these.
    pub(crate) fn assert_sound(&self, what: &str, dead: &[Id]) {
        self.verdict.assert_sound(what);
        assert!(self.finished, "{what}: events are left: {self:?}");
        assert_eq!(self.dead, dead, "{what}: {self:?}");
    }
}

fn mapping() -> RecordMapping {
    RecordMapping::new(TopicRule::fixed(TopicName::new(TOPIC).unwrap()))
}

pub(crate) fn options() -> DispatcherOptions {
    DispatcherOptions::default().with_delivery_timeout(MS(4000))
}

pub(crate) fn guarded(broker: &ModelBroker, options: DispatcherOptions) -> Arc<dyn Dispatcher> {
    let settings = KafkaSettings::new(broker.address());
    Arc::new(KafkaDispatcher::new(&settings, mapping(), options).unwrap())
}

pub(crate) fn naive(broker: &ModelBroker, batch_bytes: usize) -> Arc<dyn Dispatcher> {
    let batch_bytes = batch_bytes.to_string();
    let extra = [("linger.ms", "2"), ("batch.size", batch_bytes.as_str())];
    Arc::new(NaiveDispatcher::new(&broker.address(), mapping(), &extra))
}

/// Delivers the events by relays that share a table, one per dispatcher.
pub(crate) async fn run(
    broker: &ModelBroker,
    dispatchers: &[Arc<dyn Dispatcher>],
    events: &[Id],
    pace: Pace,
) -> Run {
    let (start, table) = (Instant::now(), Arc::new(Mutex::new(Table::new(events))));
    let relays = dispatchers.iter().map(|dispatcher| {
        let (dispatcher, table) = (Arc::clone(dispatcher), Arc::clone(&table));
        tokio::spawn(relay(dispatcher, table, pace, Duration::from_secs(90)))
    });
    for relay in relays.collect::<Vec<_>>() {
        relay.await.unwrap();
    }
    let took = start.elapsed();
    // What the broker still holds is written late, and must do no harm either.
    broker.settled().await;
    let table = table.lock().unwrap();
    let mut dead: Vec<Id> = table.dead().into_iter().collect();
    dead.sort_unstable();
    Run {
        verdict: judge(&broker.log(), &table.completed()),
        dead,
        attempts: table.attempts(),
        finished: table.is_finished(),
        fired: broker.fired(),
        taken_back: table.taken_back,
        took,
    }
}
