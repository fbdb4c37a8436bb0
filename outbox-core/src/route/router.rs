//! Chooses a dispatcher by what an event is.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::{
    AggregateType, ConfigError, Delivered, Delivery, Dispatcher, Envelope, EventType, Failure, Limits,
    Policy, RunResult,
};

/// Sends each event to one of several dispatchers: by its event type, else by its aggregate type, else to the rest's.
///
/// With it one module's events go to a broker while the others' stay in the process.
///
/// The policy of an event type is that of the dispatcher to which the type is routed. A type that is only routed by
/// aggregate has the policy of the rest's dispatcher, because a policy is asked for by type alone.
pub struct Router {
    by_event_type: HashMap<EventType, Arc<dyn Dispatcher>>,
    by_aggregate_type: HashMap<AggregateType, Arc<dyn Dispatcher>>,
    rest: Arc<dyn Dispatcher>,
}

impl Router {
    /// Sends everything to `rest`, until routes are added.
    #[must_use]
    pub fn new(rest: Arc<dyn Dispatcher>) -> Self {
        Self {
            by_event_type: HashMap::new(),
            by_aggregate_type: HashMap::new(),
            rest,
        }
    }

    /// Sends events of this type to `target`.
    #[must_use]
    pub fn event_type(mut self, event_type: EventType, target: Arc<dyn Dispatcher>) -> Self {
        self.by_event_type.insert(event_type, target);
        self
    }

    /// Sends events about this type of aggregate to `target`.
    #[must_use]
    pub fn aggregate_type(mut self, aggregate_type: AggregateType, target: Arc<dyn Dispatcher>) -> Self {
        self.by_aggregate_type.insert(aggregate_type, target);
        self
    }

    fn target(&self, envelope: &Envelope) -> &Arc<dyn Dispatcher> {
        let by_event_type = self.by_event_type.get(&envelope.event_type);
        let by_aggregate_type = || self.by_aggregate_type.get(envelope.aggregate_type.as_ref()?);
        by_event_type.or_else(by_aggregate_type).unwrap_or(&self.rest)
    }

    fn targets(&self) -> impl Iterator<Item = &Arc<dyn Dispatcher>> {
        let routed = self.by_event_type.values().chain(self.by_aggregate_type.values());
        routed.chain([&self.rest])
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("by_event_type", &self.by_event_type.keys())
            .field("by_aggregate_type", &self.by_aggregate_type.keys())
            .finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)] // A method of the trait that is added later has to be forwarded on purpose.
#[async_trait]
impl Dispatcher for Router {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.target(&delivery.envelope).dispatch(delivery).await
    }

    /// Delivers as many events from the start as go to one dispatcher, or only the first if that dispatcher takes one
    /// at a time; the relay comes back with the rest.
    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let Some(first) = run.first() else {
            return RunResult::new();
        };
        let target = self.target(&first.envelope);
        if !target.pipelines() {
            return vec![target.dispatch(first).await];
        }
        let same = |delivery: &&Delivery| Arc::ptr_eq(self.target(&delivery.envelope), target);
        let stretch = run.iter().take_while(same).count();
        target.dispatch_run(&run[..stretch]).await
    }

    fn pipelines(&self) -> bool {
        self.targets().any(|target| target.pipelines())
    }

    fn policy(&self, event_type: &EventType) -> Policy {
        self.by_event_type
            .get(event_type)
            .unwrap_or(&self.rest)
            .policy(event_type)
    }

    fn prepare(&self, limits: &Limits) -> Result<(), ConfigError> {
        let mut prepared: Vec<&Arc<dyn Dispatcher>> = Vec::new();
        for target in self.targets() {
            if prepared.iter().any(|other| Arc::ptr_eq(other, target)) {
                continue;
            }
            target.prepare(limits)?;
            prepared.push(target);
        }
        Ok(())
    }
}
