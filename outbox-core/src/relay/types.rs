//! What holds for the events of one type: its policy, its own limit on concurrency, and its outages.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

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
}

/// All types seen so far, and what waits for a place in a limited one.
#[derive(Debug, Default)]
pub(super) struct Types {
    known: HashMap<EventType, TypeState>,
    /// Types that have a limit or an outage, hence a say in the next claim.
    watched: Vec<EventType>,
}

#[derive(Debug)]
struct TypeState {
    rules: Arc<Rules>,
    running: u32,
    /// Places that were given back for deliveries that hang, before their work has ended.
    left_early: u32,
    waiting: VecDeque<Work>,
    paused_until: Option<Instant>,
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
        });
        if rules.limit.is_some() {
            self.watch(event_type);
        }
        let state = TypeState {
            rules: Arc::clone(&rules),
            running: 0,
            left_early: 0,
            waiting: VecDeque::new(),
            paused_until: None,
        };
        self.known.insert(event_type.clone(), state);
        rules
    }

    fn watch(&mut self, event_type: &EventType) {
        if !self.watched.contains(event_type) {
            self.watched.push(event_type.clone());
        }
    }

    /// Takes a place in every limited type of the work, or keeps the work until there is one in each.
    pub(super) fn admit(&mut self, work: Work) -> Option<Work> {
        let full = work.limited.iter().find(|event_type| {
            let state = self.known.get(*event_type);
            state.is_some_and(|state| state.rules.limit.is_some_and(|limit| state.running >= limit))
        });
        if let Some(state) = full.cloned().and_then(|full| self.known.get_mut(&full)) {
            state.waiting.push_back(work);
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
            if state.left_early > 0 {
                state.left_early -= 1;
                continue;
            }
            state.running = state.running.saturating_sub(1);
            // Work that is held up by another of its types moves to that one's line, and must not keep the place empty.
            while let Some(work) = self.known.get_mut(event_type).and_then(TypeState::next) {
                admitted.extend(self.admit(work));
            }
        }
        admitted
    }

    /// Gives back the place of a delivery that hangs; whenever its work ends, that place counts no more.
    pub(super) fn leave_early(&mut self, rules: &Rules) -> Vec<Work> {
        if rules.limit.is_none() {
            return Vec::new();
        }
        let freed = self.leave(std::slice::from_ref(&rules.event_type));
        if let Some(state) = self.known.get_mut(&rules.event_type) {
            state.left_early += 1;
        }
        freed
    }

    /// A delivery of the type succeeded: an outage is over.
    pub(super) fn delivered(&mut self, rules: &Rules) {
        if rules.outages.swap(0, Ordering::Relaxed) > 0
            && let Some(state) = self.known.get_mut(&rules.event_type)
        {
            state.paused_until = None;
        }
    }

    /// The type's transport is down: its events are left alone for a while. Many reports at once count as one.
    pub(super) fn outage(&mut self, rules: &Rules, now: Instant) {
        let Some(state) = self.known.get_mut(&rules.event_type) else {
            return;
        };
        if state.paused_until.is_some_and(|until| now < until) {
            return;
        }
        let outages = rules.outages.fetch_add(1, Ordering::Relaxed);
        state.paused_until = Some(now + outage_wait(outages, fastrand::f64()));
        self.watch(&rules.event_type);
    }

    /// Types of which nothing should be claimed now.
    pub(super) fn excluded(&mut self, now: Instant) -> Vec<EventType> {
        let known = &self.known;
        self.watched
            .retain(|event_type| known.get(event_type).is_some_and(TypeState::has_a_say));
        let shut = |event_type: &&EventType| known.get(*event_type).is_some_and(|state| state.is_shut(now));
        self.watched.iter().filter(shut).cloned().collect()
    }

    /// When the next pause ends.
    pub(super) fn next_resume(&self) -> Option<Instant> {
        let pause = |event_type: &EventType| self.known.get(event_type).and_then(|state| state.paused_until);
        self.watched.iter().filter_map(pause).min()
    }

    /// Ends pauses whose time is over; whether there was one.
    pub(super) fn resume(&mut self, now: Instant) -> bool {
        let mut resumed = false;
        for event_type in &self.watched {
            if let Some(state) = self.known.get_mut(event_type)
                && state.paused_until.is_some_and(|until| until <= now)
            {
                state.paused_until = None;
                resumed = true;
            }
        }
        resumed
    }

    /// Everything that waits for a place, for a relay that stops.
    pub(super) fn take_waiting(&mut self) -> Vec<Work> {
        self.known
            .values_mut()
            .flat_map(|state| state.waiting.drain(..))
            .collect()
    }
}

impl TypeState {
    /// The first that waits, if there is a place.
    fn next(&mut self) -> Option<Work> {
        let free = self.rules.limit.is_none_or(|limit| self.running < limit);
        if free { self.waiting.pop_front() } else { None }
    }

    fn has_a_say(&self) -> bool {
        self.rules.limit.is_some() || self.paused_until.is_some()
    }

    fn is_shut(&self, now: Instant) -> bool {
        let full = self.rules.limit.is_some_and(|limit| self.running >= limit);
        full || self.paused_until.is_some_and(|until| now < until)
    }
}
