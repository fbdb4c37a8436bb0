//! What happened in a run, and an offline check of it against the numbered invariants of reliability.
//!
//! It knows nothing of how the relay or the source work: it reads what was claimed, started, ended and recorded, and when.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use outbox_core::{ClaimToken, EventId};
use tokio::time::Instant;

/// How a handler's run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Succeeded,
    /// Failed, and wants another try.
    Failed,
    Rejected,
    /// Neither: its future was dropped, it panicked, or it was not to blame.
    Nothing,
}

/// What a source recorded for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recorded {
    Completed,
    Retry(Duration),
    Failed,
    Released(Duration),
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Published {
        id: EventId,
        key: Option<String>,
        due: Instant,
    },
    /// A relay asks for a claim.
    Asked {
        relay: usize,
    },
    /// The source has made a claim, whether the answer arrives or not.
    Claimed {
        id: EventId,
        token: ClaimToken,
        attempt: u32,
        until: Instant,
    },
    Extended {
        token: ClaimToken,
        until: Instant,
    },
    Recorded {
        id: EventId,
        token: ClaimToken,
        outcome: Recorded,
    },
    Started {
        id: EventId,
        attempt: u32,
    },
    Ended {
        id: EventId,
        attempt: u32,
        end: End,
    },
    StopAsked {
        relay: usize,
    },
    Stopped {
        relay: usize,
        bound: Duration,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) at: Instant,
    pub(crate) what: What,
}

/// Collects records in the order in which things happen.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Vec<Record>>);

impl History {
    pub(crate) fn note(&self, what: What) {
        let at = Instant::now();
        self.0.lock().unwrap().push(Record { at, what });
    }

    pub(crate) fn records(&self) -> Vec<Record> {
        self.0.lock().unwrap().clone()
    }
}

/// The rules of a run that the check has to know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) max_attempts: u32,
    pub(crate) wait_max: Duration,
}

#[derive(Debug)]
struct EventState {
    key: Option<String>,
    due: Instant,
    holder: Option<(ClaimToken, Instant)>,
    failures: u32,
    terminal: Option<Recorded>,
    running: usize,
    succeeded: bool,
    given_up: bool,
    tried: bool,
}

/// Reads a history; what it finds wrong, in words that begin with the number of the invariant.
#[derive(Debug)]
pub(crate) struct Check {
    rules: Rules,
    events: HashMap<EventId, EventState>,
    /// Events of each key in publish order.
    keys: HashMap<String, Vec<EventId>>,
    stops: HashMap<usize, Instant>,
    tokens: HashMap<EventId, HashSet<ClaimToken>>,
    pub(crate) violations: Vec<String>,
}

impl Check {
    pub(crate) fn of(records: &[Record], rules: Rules) -> Self {
        let mut check = Self {
            rules,
            events: HashMap::new(),
            keys: HashMap::new(),
            stops: HashMap::new(),
            tokens: HashMap::new(),
            violations: Vec::new(),
        };
        for record in records {
            check.read(record);
        }
        for (id, event) in &check.events {
            if event.terminal.is_none() {
                check
                    .violations
                    .push(format!("6: {id} is neither completed nor failed"));
            }
            if event.terminal.is_some() && !event.tried {
                check.violations.push(format!("7: {id} was never handled"));
            }
        }
        check
    }

    fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }

    fn read(&mut self, Record { at, what }: &Record) {
        match what {
            What::Published { id, key, due } => self.published(*id, key.clone(), *due),
            What::Asked { relay } => {
                // A claim that was decided on before may still begin at that very instant.
                if self.stops.get(relay).is_some_and(|asked| at > asked) {
                    self.wrong(format!("36: relay {relay} claims after it was asked to stop"));
                }
            }
            What::Claimed {
                id,
                token,
                attempt,
                until,
            } => self.claimed(*id, (*token, *until), *attempt, *at),
            What::Extended { token, until } => {
                for event in self.events.values_mut() {
                    if let Some((holder, end)) = &mut event.holder
                        && holder == token
                    {
                        *end = *until;
                    }
                }
            }
            What::Recorded { id, token, outcome } => self.recorded(*id, *token, *outcome, *at),
            What::Started { id, attempt } => self.started(*id, *attempt),
            What::Ended { id, attempt, end } => self.ended(*id, *attempt, *end),
            What::StopAsked { relay } => {
                self.stops.insert(*relay, *at);
            }
            What::Stopped { relay, bound } => {
                let took = self.stops.get(relay).map(|asked| *at - *asked);
                if took.is_none_or(|took| took > *bound) {
                    self.wrong(format!("36: relay {relay} took {took:?} to stop"));
                }
            }
        }
    }

    fn published(&mut self, id: EventId, key: Option<String>, due: Instant) {
        if let Some(key) = &key {
            self.keys.entry(key.clone()).or_default().push(id);
        }
        let state = EventState {
            key,
            due,
            holder: None,
            failures: 0,
            terminal: None,
            running: 0,
            succeeded: false,
            given_up: false,
            tried: false,
        };
        self.events.insert(id, state);
    }

    fn claimed(&mut self, id: EventId, (token, until): (ClaimToken, Instant), attempt: u32, at: Instant) {
        let Some(event) = self.events.get_mut(&id) else {
            return;
        };
        let mut wrong = Vec::new();
        if let Some((holder, end)) = event.holder.filter(|(_, end)| *end > at) {
            wrong.push(format!(
                "13: {id} was claimed while {holder:?} holds it for {:?} more",
                end - at
            ));
        }
        if event.terminal.is_some() {
            wrong.push(format!("9: {id} was claimed after its end"));
        }
        if event.due > at {
            wrong.push(format!("17: {id} was claimed {:?} too early", event.due - at));
        }
        if attempt != event.failures + 1 {
            wrong.push(format!(
                "19: {id} has {} failures and comes as attempt {attempt}",
                event.failures
            ));
        }
        event.holder = Some((token, until));
        if !self.tokens.entry(id).or_default().insert(token) {
            wrong.push(format!("13: {token:?} was given out twice for {id}"));
        }
        self.violations.extend(wrong);
    }

    fn recorded(&mut self, id: EventId, token: ClaimToken, outcome: Recorded, at: Instant) {
        let rules = self.rules;
        let Some(event) = self.events.get_mut(&id) else {
            return;
        };
        let mut wrong = Vec::new();
        match event.holder {
            Some((holder, end)) if holder == token && at < end => {}
            other => wrong.push(format!(
                "14: {id} was settled by {token:?} while {other:?} held it"
            )),
        }
        if event.terminal.is_some() {
            wrong.push(format!("9: {id} was settled as {outcome:?} after its end"));
        }
        event.holder = None;
        match outcome {
            Recorded::Completed => {
                event.terminal = Some(outcome);
                if !event.succeeded {
                    wrong.push(format!("8: {id} was completed, and no handler has succeeded"));
                }
            }
            Recorded::Failed => {
                event.failures += 1;
                event.terminal = Some(outcome);
                if !event.given_up {
                    wrong.push(format!("23: {id} was given up after {} attempts", event.failures));
                }
            }
            Recorded::Retry(after) => {
                event.failures += 1;
                event.due = at + after;
                if after > rules.wait_max {
                    wrong.push(format!("21: {id} waits {after:?}"));
                }
                if event.failures >= rules.max_attempts {
                    wrong.push(format!(
                        "20: {id} is tried again after {} attempts",
                        event.failures
                    ));
                }
            }
            Recorded::Released(after) => event.due = at + after,
        }
        self.violations.extend(wrong);
    }

    fn started(&mut self, id: EventId, attempt: u32) {
        let Some(event) = self.events.get_mut(&id) else {
            return self.wrong(format!("2: {id} was handled and never published"));
        };
        event.tried = true;
        event.running += 1;
        let mut wrong = Vec::new();
        if attempt > self.rules.max_attempts {
            wrong.push(format!("20: {id} was handled as attempt {attempt}"));
        }
        if let Some(key) = self.events.get(&id).and_then(|event| event.key.clone()) {
            for other in self.keys.get(&key).into_iter().flatten() {
                let Some(state) = self.events.get(other) else {
                    continue;
                };
                let own = usize::from(*other == id);
                if state.running > own {
                    wrong.push(format!("25: {id} was started while {other} of its key ran"));
                }
            }
            wrong.extend(self.overtaken(id, &key));
        }
        self.violations.extend(wrong);
    }

    /// Earlier events of the key that this one must not come before.
    fn overtaken(&self, id: EventId, key: &str) -> Vec<String> {
        let order = self.keys.get(key).map(Vec::as_slice).unwrap_or_default();
        let earlier = order.iter().take_while(|other| **other != id);
        let open = earlier.filter(|other| {
            let state = &self.events[*other];
            // A schedule that was not due holds up nobody; what was tried once does.
            state.tried && !state.succeeded && !state.given_up
        });
        open.map(|other| format!("26: {id} was started before {other} of its key had its end"))
            .collect()
    }

    fn ended(&mut self, id: EventId, attempt: u32, end: End) {
        let max = self.rules.max_attempts;
        let Some(event) = self.events.get_mut(&id) else {
            return;
        };
        event.running = event.running.saturating_sub(1);
        match end {
            End::Succeeded => event.succeeded = true,
            End::Rejected => event.given_up = true,
            End::Failed | End::Nothing => event.given_up = event.given_up || attempt >= max,
        }
    }
}
