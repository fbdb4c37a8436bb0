//! The life of stored events as a state machine: no lock, no clock, no wake-up in here.
//!
//! ```text
//!              ┌──────── retry, release, lease ended ────────┐
//!              ▼                                             │
//!  publish ─▶ waiting ──time comes──▶ due ──claim──▶ held ───┼──▶ completed
//!   (delay)                            ▲                     └──▶ failed ──redrive──▶ due
//!   (now) ─────────────────────────────┘                                └──discard──▶ failed for ever
//! ```
//!
//! Of each ordering key only the first open event is listed as due, and none while the key is held or blocked, so a
//! claim looks at what it may take and at little else.

mod operating;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::row::{Key, Row, Status};
use crate::{
    ClaimRequest, ClaimToken, Claimed, EventId, KeyPolicy, Outcome, Position, Settled, Settlement, TenantId,
};

#[derive(Debug, Default)]
pub(super) struct Store {
    pub(super) rows: BTreeMap<i64, Row>,
    pub(super) ids: HashMap<(TenantId, EventId), i64>,
    keys: HashMap<Key, KeyState>,
    /// What a claim may take now.
    due: BTreeSet<i64>,
    /// What becomes due by time alone.
    waiting: BTreeSet<(Instant, i64)>,
    leases: HashMap<ClaimToken, Lease>,
    lease_ends: BTreeSet<(Instant, ClaimToken)>,
    last_position: i64,
    last_claim: i64,
}

/// What holds up the events of one ordering key.
#[derive(Debug, Default)]
struct KeyState {
    /// Unsettled events that count for order: due now, or claimed before. A schedule counts once its time has come.
    open: BTreeSet<i64>,
    /// The event of this key that stands in `due`.
    listed: Option<i64>,
    /// The claim that holds events of this key, and how many.
    held: Option<(ClaimToken, usize)>,
    /// Failed events that the key waits behind.
    parked: BTreeSet<i64>,
    /// Failed events that have stopped the key.
    stopped: BTreeSet<i64>,
}

impl KeyState {
    fn is_blocked(&self) -> bool {
        !self.stopped.is_empty() || self.held.is_some() || !self.parked.is_empty()
    }

    fn is_idle(&self) -> bool {
        self.open.is_empty() && !self.is_blocked()
    }
}

#[derive(Debug)]
struct Lease {
    until: Instant,
    events: BTreeMap<i64, CancellationToken>,
    /// It was made for one event, so its loss counts against that event.
    lone: bool,
}

impl Store {
    /// Adds a row; `false` when the tenant has an event of that id already.
    pub(super) fn publish(&mut self, mut row: Row, not_before: Option<Instant>) -> bool {
        let id = (row.tenant(), row.id);
        if self.ids.contains_key(&id) {
            return false;
        }
        self.last_position += 1;
        let position = self.last_position;
        self.ids.insert(id, position);
        row.waits_until = not_before;
        self.rows.insert(position, row);
        match not_before {
            Some(time) => {
                self.waiting.insert((time, position));
            }
            None => self.open(position),
        }
        true
    }

    /// When something becomes due by time alone: a wait that is over, or a lease that ends.
    pub(super) fn next_change(&self) -> Option<Instant> {
        let waiting = self.waiting.first().map(|(time, _)| *time);
        let lease = self.lease_ends.first().map(|(time, _)| *time);
        waiting.into_iter().chain(lease).min()
    }

    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(super) fn claim(&mut self, request: &ClaimRequest, now: Instant, secret: i64) -> Vec<Claimed> {
        self.pass_time(now);
        let mut taken: Vec<Claimed> = Vec::new();
        let mut touched = Vec::new();
        let mut shared = None;
        let mut bytes = 0;
        let mut from = i64::MIN;
        while taken.len() < request.max_events.get() as usize {
            let Some(&position) = self.due.range(from..).next() else {
                break;
            };
            from = position + 1;
            let Some(row) = self.rows.get(&position) else {
                continue;
            };
            if row
                .event_type
                .as_ref()
                .is_some_and(|t| request.excluded_types.contains(t))
            {
                continue;
            }
            bytes += row.bytes;
            if !taken.is_empty() && bytes > request.max_bytes {
                break;
            }
            touched.extend(row.key.clone());
            let token = match (row.alone, shared) {
                (false, Some(token)) => token,
                (false, None) => *shared.insert(self.new_lease(now + request.lease, secret)),
                (true, _) => self.new_lease(now + request.lease, secret),
            };
            taken.extend(self.take(position, token));
        }
        // A follower that was listed for this claim but not taken is behind a held event now.
        for key in touched {
            self.relist(&key);
        }
        self.mark_lone_leases(&taken);
        taken
    }

    fn mark_lone_leases(&mut self, taken: &[Claimed]) {
        for claimed in taken {
            if let Some(lease) = self.leases.get_mut(&claimed.token) {
                lease.lone = lease.events.len() == 1;
            }
        }
    }

    fn new_lease(&mut self, until: Instant, secret: i64) -> ClaimToken {
        self.last_claim += 1;
        let token = ClaimToken::from_parts(self.last_claim, secret);
        let lease = Lease {
            until,
            events: BTreeMap::new(),
            lone: false,
        };
        self.leases.insert(token, lease);
        self.lease_ends.insert((until, token));
        token
    }

    fn take(&mut self, position: i64, token: ClaimToken) -> Option<Claimed> {
        let row = self.rows.get_mut(&position)?;
        let lost = CancellationToken::new();
        self.due.remove(&position);
        row.held_by = Some(token);
        self.leases.get_mut(&token)?.events.insert(position, lost.clone());
        let claimed = Claimed {
            token,
            position: Position(position),
            id: row.id,
            attempt: row.failures.saturating_add(1),
            lost_claims: row.lost_claims,
            done: row.done.clone(),
            lost,
            envelope: row.content.clone(),
        };
        let alone = row.alone;
        if let Some(name) = row.key.clone() {
            self.hold_key(&name, position, token, alone);
        }
        Some(claimed)
    }

    /// Marks the key as held, and lists the next of its events for the same claim: they form a run.
    fn hold_key(&mut self, name: &Key, position: i64, token: ClaimToken, alone: bool) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        let held = key.held.map_or(0, |(_, held)| held);
        key.held = Some((token, held + 1));
        key.listed = None;
        let follower = key.open.range(position + 1..).next().copied();
        let joins = follower.filter(|next| {
            let ready = |row: &Row| !row.alone && row.waits_until.is_none();
            !alone && self.rows.get(next).is_some_and(ready)
        });
        key.listed = joins;
        self.due.extend(joins);
    }

    pub(super) fn settle(&mut self, settlements: Vec<Settlement>, now: Instant) -> Settled {
        self.pass_time(now);
        let mut lost = Vec::new();
        for settlement in settlements {
            let (token, position) = (settlement.token, settlement.position);
            if self.let_go(token, position.0) {
                self.apply(position.0, settlement.outcome, now);
            } else {
                lost.push((token, position));
            }
        }
        Settled::except(lost)
    }

    /// Takes an event out of its lease; `false` when that lease does not hold it any more.
    fn let_go(&mut self, token: ClaimToken, position: i64) -> bool {
        let Some(lease) = self.leases.get_mut(&token) else {
            return false;
        };
        if lease.events.remove(&position).is_none() {
            return false;
        }
        if lease.events.is_empty() {
            self.lease_ends.remove(&(lease.until, token));
            self.leases.remove(&token);
        }
        let Some(row) = self.rows.get_mut(&position) else {
            return false;
        };
        row.held_by = None;
        if let Some(key) = row.key.as_ref().and_then(|name| self.keys.get_mut(name)) {
            key.held = key
                .held
                .and_then(|(token, held)| (held > 1).then(|| (token, held - 1)));
        }
        true
    }

    fn apply(&mut self, position: i64, outcome: Outcome, now: Instant) {
        let Some(row) = self.rows.get_mut(&position) else {
            return;
        };
        row.alone = false;
        match outcome {
            Outcome::Completed => {
                row.status = Status::Completed;
                self.close(position, KeyPolicy::GoOn);
            }
            Outcome::Failed { error, done, key } => {
                row.status = Status::Failed;
                row.failures = row.failures.saturating_add(1);
                row.error = Some(error);
                row.done = done;
                self.close(position, key);
            }
            Outcome::Retry { after, error, done } => {
                row.failures = row.failures.saturating_add(1);
                row.error = Some(error);
                row.done = done;
                self.wait_or_open(position, after, now);
            }
            Outcome::Released { after, done } => {
                row.done = done;
                self.wait_or_open(position, after, now);
            }
        }
    }

    fn wait_or_open(&mut self, position: i64, after: Duration, now: Instant) {
        let Some(row) = self.rows.get_mut(&position) else {
            return;
        };
        if after.is_zero() {
            self.open(position);
            return;
        }
        let time = now + after;
        row.waits_until = Some(time);
        self.waiting.insert((time, position));
        // It keeps its place in `open`: what was claimed once goes before its followers.
        if let Some(name) = row.key.clone() {
            self.relist(&name);
        }
    }

    fn close(&mut self, position: i64, policy: KeyPolicy) {
        let Some(name) = self.rows.get(&position).and_then(|row| row.key.clone()) else {
            return;
        };
        let key = self.keys.entry(name.clone()).or_default();
        key.open.remove(&position);
        match policy {
            KeyPolicy::GoOn => {}
            KeyPolicy::Stop => {
                key.stopped.insert(position);
            }
            KeyPolicy::Park => {
                key.parked.insert(position);
            }
        }
        self.relist(&name);
    }

    /// Makes an event due, as far as its key lets it.
    pub(super) fn open(&mut self, position: i64) {
        let Some(row) = self.rows.get_mut(&position) else {
            return;
        };
        row.waits_until = None;
        let Some(name) = row.key.clone() else {
            self.due.insert(position);
            return;
        };
        self.keys.entry(name.clone()).or_default().open.insert(position);
        self.relist(&name);
    }

    /// Puts the first open event of a key into `due`, or none while something holds the key up.
    fn relist(&mut self, name: &Key) {
        let Some(key) = self.keys.get_mut(name) else {
            return;
        };
        if let Some(listed) = key.listed.take() {
            self.due.remove(&listed);
        }
        if key.is_idle() {
            self.keys.remove(name);
            return;
        }
        if key.is_blocked() {
            return;
        }
        let ready = |position: &i64| {
            self.rows
                .get(position)
                .is_some_and(|row| row.waits_until.is_none())
        };
        key.listed = key.open.first().copied().filter(ready);
        self.due.extend(key.listed);
    }

    /// Ends leases whose time is over, and makes due what has waited long enough.
    pub(super) fn pass_time(&mut self, now: Instant) {
        while let Some(&(until, token)) = self.lease_ends.first().filter(|(until, _)| *until <= now) {
            self.lease_ends.remove(&(until, token));
            if let Some(lease) = self.leases.remove(&token) {
                self.lose(&lease);
            }
        }
        while let Some(&(time, position)) = self.waiting.first().filter(|(time, _)| *time <= now) {
            self.waiting.remove(&(time, position));
            self.open(position);
        }
    }

    fn lose(&mut self, lease: &Lease) {
        for (&position, lost) in &lease.events {
            lost.cancel();
            let Some(row) = self.rows.get_mut(&position) else {
                continue;
            };
            row.held_by = None;
            row.alone = true;
            if lease.lone {
                row.lost_claims = row.lost_claims.saturating_add(1);
            }
            if let Some(key) = row.key.as_ref().and_then(|name| self.keys.get_mut(name)) {
                key.held = None;
            }
        }
        for &position in lease.events.keys() {
            self.open(position);
        }
    }

    pub(super) fn extend(&mut self, tokens: &[ClaimToken], until: Instant, now: Instant) -> Vec<ClaimToken> {
        self.pass_time(now);
        let mut lost = Vec::new();
        for &token in tokens {
            match self.leases.get_mut(&token) {
                Some(lease) => {
                    self.lease_ends.remove(&(lease.until, token));
                    lease.until = until;
                    self.lease_ends.insert((until, token));
                }
                None => lost.push(token),
            }
        }
        lost
    }
}
