//! An outbox in memory with what matters here: order per key, leases, outcomes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use outbox_core::FailureKind;
use tokio::time::Instant;

use super::event::Id;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Pending { due: Instant },
    Leased { until: Instant, token: u64 },
    Completed,
    Dead,
}

#[derive(Debug)]
pub(crate) struct Table {
    keys: BTreeMap<u32, Vec<Id>>,
    states: HashMap<Id, State>,
    attempts: HashMap<Id, u32>,
    open: usize,
    token: u64,
    turn: u32,
    /// Events claimed again because a lease ran out.
    pub(crate) taken_back: usize,
}

impl Table {
    pub(crate) fn new(events: &[Id]) -> Self {
        let mut keys = BTreeMap::<u32, Vec<Id>>::new();
        events
            .iter()
            .for_each(|id| keys.entry(id.key).or_default().push(*id));
        let due = Instant::now();
        Self {
            keys,
            states: events.iter().map(|id| (*id, State::Pending { due })).collect(),
            attempts: HashMap::new(),
            open: events.len(),
            token: 0,
            turn: 0,
            taken_back: 0,
        }
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.open == 0
    }

    /// Runs of due events, one per key at most, no key of which is in flight, `most` events in all.
    pub(crate) fn claim(&mut self, most: usize, run_max: usize, lease: Duration) -> Vec<(u64, Vec<Id>)> {
        let (now, mut left, mut runs) = (Instant::now(), most, Vec::new());
        self.turn = self.turn.wrapping_add(7);
        let count = self.keys.len().max(1);
        let turn = self.turn as usize % count;
        let keys: Vec<u32> = self
            .keys
            .keys()
            .copied()
            .cycle()
            .skip(turn)
            .take(self.keys.len())
            .collect();
        for key in keys {
            if left == 0 {
                break;
            }
            let run = self.due_run(key, now, run_max.min(left));
            if run.is_empty() {
                continue;
            }
            left -= run.len();
            self.token += 1;
            for id in &run {
                let leased = State::Leased {
                    until: now + lease,
                    token: self.token,
                };
                if let Some(State::Leased { .. }) = self.states.insert(*id, leased) {
                    self.taken_back += 1;
                }
            }
            runs.push((self.token, run));
        }
        runs
    }

    fn due_run(&mut self, key: u32, now: Instant, most: usize) -> Vec<Id> {
        let states = &self.states;
        let Some(ids) = self.keys.get_mut(&key) else {
            return vec![];
        };
        let finished = ids
            .iter()
            .take_while(|id| matches!(states[id], State::Completed | State::Dead))
            .count();
        ids.drain(..finished);
        let open = ids
            .iter()
            .filter(|id| !matches!(states[id], State::Completed | State::Dead));
        let free = open.take_while(|id| match states[id] {
            State::Pending { due } => due <= now,
            State::Leased { until, .. } => until <= now,
            State::Completed | State::Dead => false,
        });
        free.take(most).copied().collect()
    }

    /// Records an outcome, if the event is still held by this token.
    pub(crate) fn settle(&mut self, token: u64, id: Id, outcome: Result<(), FailureKind>) {
        const ATTEMPTS_MAX: u32 = 5;
        let now = Instant::now();
        match self.states[&id] {
            State::Leased { until, token: held } if held == token && until > now => {}
            _ => return,
        }
        let again = |wait| State::Pending { due: now + wait };
        let state = match outcome {
            Ok(()) => State::Completed,
            Err(FailureKind::Reject) => State::Dead,
            Err(FailureKind::Retry) => {
                let attempts = self.attempts.entry(id).or_default();
                *attempts += 1;
                if *attempts >= ATTEMPTS_MAX {
                    State::Dead
                } else {
                    again(Duration::from_millis(50))
                }
            }
            Err(FailureKind::Outage) => again(Duration::from_millis(200)),
            Err(FailureKind::NotTried) => again(Duration::ZERO),
        };
        if matches!(state, State::Completed | State::Dead) {
            self.open -= 1;
        }
        self.states.insert(id, state);
    }

    pub(crate) fn completed(&self) -> HashSet<Id> {
        self.in_state(State::Completed)
    }

    pub(crate) fn dead(&self) -> HashSet<Id> {
        self.in_state(State::Dead)
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts.values().sum()
    }

    fn in_state(&self, wanted: State) -> HashSet<Id> {
        self.states
            .iter()
            .filter(|(_, state)| **state == wanted)
            .map(|(id, _)| *id)
            .collect()
    }
}
