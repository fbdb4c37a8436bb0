//! A partition as its broker has it, beside what the source knows of it: what random histories are checked against.

use std::collections::{BTreeMap, HashMap, HashSet};

use outbox_core::{EventId, KeyPolicy, OrderingKey, TenantId};
use rdkafka::Timestamp;
use uuid::Uuid;

use super::super::letters::{Delivery, Letter, UNDER_WAY_MAX};
use super::*;

const LEASE: Duration = Duration::from_secs(5);

/// What happens next. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Records are written and read, with a gap of offsets before them, keyed by number; 0 is none.
    Arrive {
        gap: i64,
        keys: Vec<u8>,
    },
    /// The log loses its last records, and reading begins that much before.
    LoseEnd {
        lost: usize,
        before: usize,
    },
    Claim(u32),
    Settle(usize, usize),
    Pass(u64),
    HandLetters,
    Answer(usize, usize),
    Commit,
    /// The client is taken to read from a lower offset, rightly or not.
    Retreat(i64),
    /// The partition goes and comes back.
    Rebalance,
}

pub(super) struct World {
    pub(super) state: State,
    pub(super) now: Instant,
    /// The partition as the broker has it: which event is where, and its key.
    pub(super) log: BTreeMap<i64, (u128, u8)>,
    /// Where the next record is written.
    end: i64,
    pub(super) last_id: u128,
    pub(super) committed: i64,
    pub(super) held: Vec<Taken>,
    pub(super) letters: Vec<Letter>,
    pub(super) finished: HashSet<u128>,
    /// Read, and not in hand any more because of a rebalance.
    pub(super) given_up: bool,
    claimed: HashSet<u128>,
    /// The last event of each key that was claimed for the first time.
    newest: HashMap<u8, u128>,
}

pub(super) fn name() -> Name {
    ("t".to_owned(), 0)
}

fn id(facts: &Facts) -> u128 {
    facts.id.as_uuid().as_u128()
}

impl World {
    pub(super) fn new() -> Self {
        let mut state = State::default();
        state.assign(name());
        Self {
            state,
            now: Instant::now(),
            log: BTreeMap::new(),
            end: 0,
            last_id: 0,
            committed: 0,
            held: Vec::new(),
            letters: Vec::new(),
            finished: HashSet::new(),
            given_up: false,
            claimed: HashSet::new(),
            newest: HashMap::new(),
        }
    }

    pub(super) fn read_from(&mut self, offset: i64) {
        for (offset, (id, key)) in self.log.range(offset..) {
            let key = (*key > 0).then(|| (TenantId::default(), OrderingKey::new(key.to_string()).unwrap()));
            let facts = Facts {
                id: EventId::from_uuid(Uuid::from_u128(*id)),
                event_type: None,
                key,
                bytes: 7,
            };
            let (topic, time) = (name().0, Timestamp::NotAvailable);
            let payload = Some(id.to_be_bytes().to_vec());
            let record = OwnedMessage::new(payload, None, topic, time, 0, *offset, None);
            self.state.push(record, facts, self.now).unwrap();
        }
    }

    pub(super) fn arrive(&mut self, gap: i64, keys: &[u8]) {
        let begin = self.end + gap;
        for (offset, key) in (begin..).zip(keys) {
            self.last_id += 1;
            self.log.insert(offset, (self.last_id, *key));
            self.end = offset + 1;
        }
        self.read_from(begin);
    }

    /// As in `arrive`, some records of the new end are there when it is found.
    pub(super) fn lose_end(&mut self, lost: usize, before: usize) {
        let Some((first_lost, _)) = self.log.iter().rev().nth(lost) else {
            return;
        };
        let first_lost = *first_lost;
        self.log.split_off(&first_lost);
        self.last_id += 1;
        self.log.insert(first_lost, (self.last_id, 1));
        self.end = first_lost + 1;
        let from = *self.log.keys().rev().nth(before).unwrap_or(&0);
        self.read_from(from);
        // The group's offset does not go back by itself, and what comes next may be a rebalance.
        self.commit();
    }

    pub(super) fn claim(&mut self, most: u32) {
        let request = ClaimRequest::new(most.try_into().unwrap(), LEASE);
        let taken = self.state.claim(&request, self.now);
        self.held.retain(|held| !held.lost.is_cancelled());
        for taken in taken {
            let (id, key) = (id(&taken.facts), taken.facts.key.clone());
            assert!(!self.is_held(&taken), "{id} is in two claims");
            let others = self.held.iter().filter(|held| held.token != taken.token);
            let same_key = others.filter(|held| key.is_some() && held.facts.key == key);
            assert_eq!(same_key.count(), 0, "a key is in two claims");
            if let (true, Some((_, key))) = (self.claimed.insert(id), key) {
                let newest = self.newest.entry(key.as_str().parse().unwrap()).or_default();
                assert!(*newest < id, "{id} came first behind {newest}");
                *newest = id;
            }
            self.held.push(taken);
        }
    }

    /// By its record: what is read again after the log has lost its end is another one, of the same event.
    fn is_held(&self, taken: &Taken) -> bool {
        let mut held = self.held.iter();
        held.any(|held| Arc::ptr_eq(&held.record, &taken.record) && !held.lost.is_cancelled())
    }

    pub(super) fn settle(&mut self, which: usize, outcome: usize) {
        if self.held.is_empty() {
            return;
        }
        let taken = self.held.swap_remove(which % self.held.len());
        let outcome = match outcome % 4 {
            0 | 1 => Outcome::Completed,
            2 => Outcome::Failed {
                error: "no".to_owned(),
                done: vec![],
                key: KeyPolicy::GoOn,
            },
            _ => Outcome::Retry {
                after: Duration::from_secs(1),
                error: "not yet".to_owned(),
                done: vec![],
            },
        };
        let is_done = matches!(outcome, Outcome::Completed);
        let settlement = Settlement {
            token: taken.token,
            position: taken.position,
            id: taken.facts.id,
            outcome,
        };
        let lost = taken.lost.is_cancelled();
        let held = self.state.settle(&settlement, self.now);
        assert!(!(held && lost), "what was lost was settled");
        if held && is_done {
            self.finished.insert(id(&taken.facts));
        }
        assert!(!self.state.settle(&settlement, self.now), "settled twice");
    }

    pub(super) fn hand_letters(&mut self) {
        let before = self.state.totals().unburied;
        let letters = self.state.letters(self.now).due;
        assert!(letters.len() <= before.min(UNDER_WAY_MAX));
        self.letters.extend(letters);
    }

    pub(super) fn answer(&mut self, which: usize, fate: usize) {
        if self.letters.is_empty() {
            return;
        }
        let letter = self.letters.swap_remove(which % self.letters.len());
        let delivery = [Delivery::Safe, Delivery::TooLarge, Delivery::Unwritten][fate % 3];
        // Which event a letter was of, as long as it counts, is what the event itself says.
        let event = self.letter_event(&letter);
        let counted = self.state.delivered(letter.grave, delivery, self.now);
        if counted.is_some() && delivery == Delivery::Safe {
            self.finished.insert(event.unwrap());
        }
        assert!(self.state.delivered(letter.grave, delivery, self.now).is_none());
    }

    /// The event whose record, the same and no copy, the letter carries.
    fn letter_event(&self, letter: &Letter) -> Option<u128> {
        let partition = self.state.partitions.get(&name()).unwrap();
        let mut entries = partition.entries.values();
        let entry = entries.find(|entry| Arc::ptr_eq(&entry.record, &letter.record))?;
        Some(id(&entry.facts))
    }

    pub(super) fn commit(&mut self) {
        let partition = self.state.partitions.get_mut(&name()).unwrap();
        let Some(next) = partition.to_commit() else { return };
        partition.committed = Some(next);
        self.committed = next;
        for (offset, (id, _)) in self.log.range(..next) {
            assert!(
                self.finished.contains(id),
                "{next} was committed, {offset} is not finished"
            );
        }
    }

    pub(super) fn rebalance(&mut self) {
        self.state.revoke(&name());
        assert!(self.held.iter().all(|held| held.lost.is_cancelled()));
        self.given_up = true;
        self.state.assign(name());
        self.read_from(self.committed);
    }

    pub(super) fn take(&mut self, step: &Step) {
        match step {
            Step::Arrive { gap, keys } => self.arrive(*gap, keys),
            Step::LoseEnd { lost, before } => self.lose_end(*lost, *before),
            Step::Claim(most) => self.claim(*most),
            Step::Settle(which, outcome) => self.settle(*which, *outcome),
            Step::Pass(seconds) => self.now += Duration::from_secs(*seconds),
            Step::HandLetters => self.hand_letters(),
            Step::Answer(which, fate) => self.answer(*which, *fate),
            Step::Commit => self.commit(),
            Step::Retreat(to) => {
                let partition = self.state.partitions.get_mut(&name()).unwrap();
                partition.retreat(*to % (self.end + 1));
            }
            Step::Rebalance => self.rebalance(),
        }
    }

    /// Everything works from now on: everything has to come to its end.
    pub(super) fn drain(&mut self) {
        for _ in 0..10_000 {
            if self.state.totals().unfinished == 0 {
                self.commit();
                return;
            }
            self.now += Duration::from_secs(1);
            self.claim(100);
            while !self.held.is_empty() {
                self.settle(0, 0);
            }
            self.hand_letters();
            while !self.letters.is_empty() {
                self.answer(0, 0);
            }
        }
        panic!("it never ends: {:?}", self.state.totals());
    }
}
