//! What passes between the relay's loop and its workers.

use std::sync::Arc;
use std::time::Duration;

use super::lease::Lease;
use super::types::Rules;
use crate::telemetry::OutcomeLabel;
use crate::{Delivered, Delivery, EventType, Outcome};

/// Names one event in this relay's hands; never given out twice, so a late result finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct HeldId(u64);

impl HeldId {
    pub(super) fn new(generation: u32, index: usize) -> Self {
        let index = u64::try_from(index).unwrap_or(u64::MAX);
        Self(u64::from(generation) << 32 | index & u64::from(u32::MAX))
    }

    /// Where it is held.
    pub(super) fn index(self) -> usize {
        usize::try_from(self.0 & u64::from(u32::MAX)).unwrap_or(usize::MAX)
    }
}

/// One event to deliver.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) held: HeldId,
    pub(super) delivery: Delivery,
    pub(super) lease: Arc<Lease>,
    pub(super) rules: Arc<Rules>,
}

/// What one worker does at a time: an event, or the events of one ordering key in order.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) items: Items,
    /// Event types with a limit of their own in which this work has a place.
    pub(super) limited: Vec<EventType>,
}

#[derive(Debug)]
pub(super) enum Items {
    One(Item),
    Run(Vec<Item>),
}

impl Work {
    pub(super) fn one(item: Item) -> Self {
        let mut work = Self {
            limited: Vec::new(),
            items: Items::One(item),
        };
        work.note_limit();
        work
    }

    /// Adds a later event of the same ordering key.
    pub(super) fn push(&mut self, item: Item) {
        let items = std::mem::replace(&mut self.items, Items::Run(Vec::new()));
        self.items = match items {
            Items::One(first) => Items::Run(vec![first, item]),
            Items::Run(mut run) => {
                run.push(item);
                Items::Run(run)
            }
        };
        self.note_limit();
    }

    fn note_limit(&mut self) {
        let last = match &self.items {
            Items::One(item) => Some(item),
            Items::Run(run) => run.last(),
        };
        if let Some(item) = last
            && item.rules.limit.is_some()
            && !self.limited.contains(&item.rules.event_type)
        {
            self.limited.push(item.rules.event_type.clone());
        }
    }

    /// Notes a limit for the types of its events that `limits` names.
    pub(super) fn limit_types(&mut self, limits: impl Fn(&Rules) -> bool) {
        let items = match &self.items {
            Items::One(item) => std::slice::from_ref(item),
            Items::Run(run) => run,
        };
        for rules in items.iter().map(|item| &item.rules) {
            if limits(rules) && !self.limited.contains(&rules.event_type) {
                self.limited.push(rules.event_type.clone());
            }
        }
    }

    pub(super) fn into_items(self) -> Vec<Item> {
        match self.items {
            Items::One(item) => vec![item],
            Items::Run(run) => run,
        }
    }
}

/// How a try ended, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Delivered(Delivered),
    Failed,
    /// Its time was over: whether anybody was there to answer, nobody knows.
    TimedOut,
    Outage,
    NotTried,
}

impl Ended {
    /// What an end that led to that outcome counts as.
    pub(super) fn label(self, outcome: &Outcome) -> OutcomeLabel {
        match outcome {
            Outcome::Completed if self == Self::Delivered(Delivered::Unhandled) => OutcomeLabel::Unhandled,
            Outcome::Completed => OutcomeLabel::Completed,
            Outcome::Retry { .. } => OutcomeLabel::Retry,
            Outcome::Failed { .. } => OutcomeLabel::Failed,
            Outcome::Released { .. } => OutcomeLabel::Released,
        }
    }
}

/// An event whose delivery has ended.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) item: Item,
    pub(super) outcome: Outcome,
    pub(super) ended: Ended,
    /// What the outage is, if it ended in one: an outcome that is handed back says nothing.
    pub(super) outage: Option<String>,
    /// The places that the work gives back, once it has ended as a whole.
    pub(super) leaves: Vec<EventType>,
}

impl Item {
    /// The event goes back untouched.
    pub(super) fn not_tried(self) -> Finished {
        let outcome = Outcome::Released {
            after: Duration::ZERO,
            done: self.delivery.done.to_vec(),
        };
        Finished {
            item: self,
            outcome,
            ended: Ended::NotTried,
            outage: None,
            leaves: Vec::new(),
        }
    }
}
