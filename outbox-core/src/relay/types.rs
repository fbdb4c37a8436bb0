//! What holds for the events of one type: its policy, its own limit on concurrency, and its outages.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::breaker::{Breaker, Circuit};
use super::outcome::{WAIT_MAX, outage_wait};
use super::work::Work;
use crate::{Dispatcher, EventType, KeyPolicy, RelaySettings, RetryPolicy};

/// The policy of a type, resolved against the relay's settings once.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) event_type: EventType,
    pub(super) retry: RetryPolicy,
    pub(super) timeout: Duration,
    pub(super) key: KeyPolicy,
    pub(super) limit: Option<u32>,
    /// Outages in a row.
    pub(super) outages: AtomicU32,
    /// The breaker is open: what a worker has not begun goes back.
    pub(super) open: AtomicBool,
}

/// All types seen so far, and what waits for a place in a limited one.
#[derive(Debug, Default)]
pub(super) struct Types {
    known: HashMap<EventType, TypeState>,
    /// Types that have a limit or an outage, hence a say in the next claim.
    watched: Vec<EventType>,
    /// How many breakers are half-open.
    half_open: usize,
    /// What breakers have become since somebody asked.
    changes: Vec<(EventType, Breaker)>,
    /// Work that would go beside a probe.
    returned: Vec<Work>,
}

#[derive(Debug)]
struct TypeState {
    rules: Arc<Rules>,
    running: u32,
    waiting: VecDeque<Work>,
    circuit: Circuit,
    /// What its last outage was.
    outage: String,
}

/// More types than this are forgotten and looked up again: types come from outside, memory does not grow with them.
const TYPES_MAX: usize = 4_096;

impl Types {
    /// The rules of a type, asked of the dispatcher at its first event.
    pub(super) fn rules(
        &mut self,
        event_type: &EventType,
        dispatcher: &dyn Dispatcher,
        settings: &RelaySettings,
    ) -> Arc<Rules> {
        if let Some(state) = self.known.get(event_type) {
            return Arc::clone(&state.rules);
        }
        if self.known.len() >= TYPES_MAX {
            let watched = &self.watched;
            self.known.retain(|event_type, _| watched.contains(event_type));
        }
        // Foreign code in the relay's own task.
        let policy = catch_unwind(AssertUnwindSafe(|| dispatcher.policy(event_type))).unwrap_or_default();
        let rules = Arc::new(Rules {
            event_type: event_type.clone(),
            retry: policy.retry.unwrap_or_else(|| settings.retry.clone()),
            timeout: policy.timeout.unwrap_or(settings.handler_timeout).min(WAIT_MAX),
            key: policy.key,
            limit: policy.concurrency.map(|limit| limit.get()),
            outages: AtomicU32::new(0),
            open: AtomicBool::new(false),
        });
        if rules.limit.is_some() {
            self.watch(event_type);
        }
        let state = TypeState {
            rules: Arc::clone(&rules),
            running: 0,
            waiting: VecDeque::new(),
            circuit: Circuit::Closed,
            outage: String::new(),
        };
        self.known.insert(event_type.clone(), state);
        rules
    }

    fn watch(&mut self, event_type: &EventType) {
        if !self.watched.contains(event_type) {
            self.watched.push(event_type.clone());
        }
    }

    /// Takes a place in every limited type of the work, or keeps the work until there is one in each. What is not to be
    /// a probe, because there is one already, is not kept.
    pub(super) fn admit(&mut self, mut work: Work) -> Option<Work> {
        if self.half_open > 0 {
            work.limit_types(|rules| {
                let state = self.known.get(&rules.event_type);
                state.is_some_and(|state| state.circuit == Circuit::HalfOpen)
            });
        }
        let full = work
            .limited
            .iter()
            .find(|event_type| self.known.get(*event_type).is_some_and(TypeState::is_full));
        if let Some(state) = full.cloned().and_then(|full| self.known.get_mut(&full)) {
            match state.circuit {
                Circuit::HalfOpen => self.returned.push(work),
                Circuit::Closed | Circuit::Open { .. } => state.waiting.push_back(work),
            }
            return None;
        }
        for event_type in &work.limited {
            if let Some(state) = self.known.get_mut(event_type) {
                state.running += 1;
            }
        }
        Some(work)
    }

    /// Gives places back, and returns the work that can take them.
    pub(super) fn leave(&mut self, limited: &[EventType]) -> Vec<Work> {
        let mut admitted = Vec::new();
        for event_type in limited {
            let Some(state) = self.known.get_mut(event_type) else {
                continue;
            };
            state.running = state.running.saturating_sub(1);
            // Work that is held up by another of its types moves to that one's line, and must not keep the place empty.
            while let Some(work) = self.known.get_mut(event_type).and_then(TypeState::next) {
                admitted.extend(self.admit(work));
            }
        }
        admitted
    }

    /// A delivery of the type was answered, by whatever but an outage. Only a probe's answer says that it is over: others
    /// may have begun before it.
    pub(super) fn answered(&mut self, rules: &Rules) {
        if rules.outages.load(Ordering::Relaxed) == 0 {
            return;
        }
        let state = self.known.get(&rules.event_type);
        if state.is_some_and(|state| state.circuit == Circuit::HalfOpen) {
            rules.outages.store(0, Ordering::Relaxed);
            self.turn(&rules.event_type, Circuit::Closed);
        }
    }

    fn turn(&mut self, event_type: &EventType, circuit: Circuit) {
        let Some(state) = self.known.get_mut(event_type) else {
            return;
        };
        let before = std::mem::replace(&mut state.circuit, circuit).breaker();
        let after = circuit.breaker();
        state.rules.open.store(after == Breaker::Open, Ordering::Relaxed);
        if before != after {
            self.half_open -= usize::from(before == Breaker::HalfOpen);
            self.half_open += usize::from(after == Breaker::HalfOpen);
            self.changes.push((event_type.clone(), after));
        }
    }

    /// What breakers have become since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<(EventType, Breaker)> {
        std::mem::take(&mut self.changes)
    }

    /// What the last outage of a type was.
    pub(super) fn last_outage(&self, event_type: &EventType) -> &str {
        self.known.get(event_type).map_or("", |state| &state.outage)
    }

    /// What was claimed beside a probe, to be handed back.
    pub(super) fn take_returned(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.returned)
    }

    /// The type's transport is down: its events are left alone for a while. Many reports at once count as one.
    pub(super) fn outage(&mut self, rules: &Rules, error: String, now: Instant) {
        let state = self.known.get_mut(&rules.event_type);
        let Some(state) = state.filter(|state| !state.circuit.is_open(now)) else {
            return;
        };
        state.outage = error;
        let outages = rules.outages.fetch_add(1, Ordering::Relaxed);
        let until = now + outage_wait(outages, fastrand::f64());
        self.turn(&rules.event_type, Circuit::Open { until });
        self.watch(&rules.event_type);
    }

    /// How much work waits for a place in its type.
    pub(super) fn waiting(&self) -> usize {
        let states = self.watched.iter().filter_map(|name| self.known.get(name));
        states.map(|state| state.waiting.len()).sum()
    }

    /// Types of which nothing should be claimed now.
    pub(super) fn excluded(&mut self, now: Instant) -> Vec<EventType> {
        let known = &self.known;
        self.watched
            .retain(|event_type| known.get(event_type).is_some_and(TypeState::has_a_say));
        let shut = |event_type: &&EventType| known.get(*event_type).is_some_and(|state| state.is_shut(now));
        self.watched.iter().filter(shut).cloned().collect()
    }

    /// When the next open breaker lets a probe through.
    pub(super) fn next_resume(&self) -> Option<Instant> {
        let open_until = |event_type: &EventType| match self.known.get(event_type)?.circuit {
            Circuit::Open { until } => Some(until),
            Circuit::Closed | Circuit::HalfOpen => None,
        };
        self.watched.iter().filter_map(open_until).min()
    }

    /// Opens breakers half whose time is over; whether there was one.
    pub(super) fn resume(&mut self, now: Instant) -> bool {
        let over =
            |state: &TypeState| state.circuit.breaker() == Breaker::Open && !state.circuit.is_open(now);
        let resumed: Vec<EventType> = self
            .watched
            .iter()
            .filter(|event_type| self.known.get(*event_type).is_some_and(over))
            .cloned()
            .collect();
        for event_type in &resumed {
            self.turn(event_type, Circuit::HalfOpen);
        }
        !resumed.is_empty()
    }

    /// Everything that waits for a place, for a relay that stops.
    pub(super) fn take_waiting(&mut self) -> Vec<Work> {
        let mut waiting = self.take_returned();
        waiting.extend(self.known.values_mut().flat_map(|state| state.waiting.drain(..)));
        waiting
    }
}

impl TypeState {
    /// The first that waits, if there is a place.
    fn next(&mut self) -> Option<Work> {
        if self.is_full() {
            None
        } else {
            self.waiting.pop_front()
        }
    }

    fn is_full(&self) -> bool {
        let limit = match self.circuit {
            Circuit::HalfOpen => Some(1),
            Circuit::Closed | Circuit::Open { .. } => self.rules.limit,
        };
        limit.is_some_and(|limit| self.running >= limit)
    }

    fn has_a_say(&self) -> bool {
        self.rules.limit.is_some() || self.circuit != Circuit::Closed
    }

    fn is_shut(&self, now: Instant) -> bool {
        self.is_full() || self.circuit.is_open(now)
    }
}
