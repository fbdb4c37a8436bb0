//! The source in memory, the relays that work on it, and the history of what they did.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use outbox::memory::{MemorySource, Status};
use outbox::{
    ClaimRequest, Claimed, Envelope, EventId, EventType, KeyPolicy, OrderingKey, Outcome, Payload,
    Settlement, Source, TenantId,
};
use outbox_chaos::history::{Ending, Policy, Record, What};
use tokio::time::Instant;

use crate::op::{End, Op, RELAYS};

const LEASE: Duration = Duration::from_millis(400);
const TYPES: [(&str, Policy); 3] = [("A", Policy::GoOn), ("B", Policy::Stop), ("C", Policy::Park)];

/// Events of one key from one claim, to be handled in order before the lease ends.
struct Run {
    until: Instant,
    events: VecDeque<Claimed>,
}

struct Published {
    id: EventId,
    key: Option<String>,
    kind: usize,
    delayed: bool,
    discarded: bool,
}

pub(crate) struct World {
    source: MemorySource,
    began: Instant,
    records: Vec<Record>,
    published: Vec<Published>,
    hands: Vec<Vec<Run>>,
    /// How often each relay has crashed: another life has another name.
    lives: Vec<usize>,
    /// The broken twin: runs are handled from their end.
    backwards: bool,
}

fn key_of(key: u8) -> OrderingKey {
    OrderingKey::new(format!("k{key}")).unwrap()
}

impl World {
    pub(crate) fn new(backwards: bool) -> Self {
        Self {
            source: MemorySource::new(),
            began: Instant::now(),
            records: Vec::new(),
            published: Vec::new(),
            hands: (0..RELAYS).map(|_| Vec::new()).collect(),
            lives: vec![0; RELAYS],
            backwards,
        }
    }

    fn name(&self, relay: usize) -> String {
        format!("relay-{relay}-{}", self.lives[relay])
    }

    /// Every record takes a millisecond, so that no two happen at the same time.
    async fn note(&mut self, process: &str, what: What) {
        tokio::time::advance(Duration::from_millis(1)).await;
        self.records.push(Record {
            at_us: i64::try_from(self.began.elapsed().as_micros()).unwrap(),
            process: process.to_owned(),
            what,
        });
    }

    pub(crate) async fn act(&mut self, op: Op) {
        match op {
            Op::Publish { key, kind, delay } => self.publish(key, kind, delay).await,
            Op::Claim {
                relay,
                events,
                paused,
            } => self.claim(relay, events, paused).await,
            Op::Handle { relay, run, end } => self.handle(relay, run, end).await,
            Op::Crash { relay, handled } => self.crash(relay, handled).await,
            Op::Wait(ms) => tokio::time::advance(Duration::from_millis(ms.into())).await,
            Op::Redrive(nth) => self.redrive(nth).await,
            Op::Discard(nth) => self.discard(nth).await,
            Op::Resume(key) => self.resume(key).await,
        }
    }

    async fn publish(&mut self, key: Option<u8>, kind: usize, delay: u16) {
        let event_type = EventType::new(TYPES[kind].0).unwrap();
        let now = jiff::Timestamp::now();
        let mut envelope = Envelope::new(EventId::new(), event_type, Payload::from_json("{}"), now);
        envelope.ordering_key = key.map(key_of);
        let id = envelope.id;
        self.published.push(Published {
            id,
            key: key.map(|key| key_of(key).to_string()),
            kind,
            delayed: delay > 0,
            discarded: false,
        });
        self.source
            .publish_after(envelope, Duration::from_millis(delay.into()));
        self.note("publisher", What::Committed { event: id.as_uuid() })
            .await;
    }

    async fn claim(&mut self, relay: usize, events: u32, paused: Option<usize>) {
        let until = Instant::now() + LEASE;
        let paused = paused.map(|kind| EventType::new(TYPES[kind].0).unwrap());
        let request = ClaimRequest::new(events.try_into().unwrap(), LEASE)
            .with_excluded_types(paused.into_iter().collect());
        let claimed = self.source.claim(request).await.unwrap();
        assert!(claimed.len() <= events as usize);
        let mut runs: BTreeMap<String, Run> = BTreeMap::new();
        for (n, event) in claimed.into_iter().enumerate() {
            let key = event.envelope.as_ref().unwrap().ordering_key.as_ref();
            let key = key.map_or_else(|| format!("-{n}"), ToString::to_string);
            let run = runs.entry(key).or_insert_with(|| Run {
                until,
                events: VecDeque::new(),
            });
            run.events.push_back(event);
        }
        self.hands[relay].extend(runs.into_values());
    }

    /// The run to go on with, taken out of the relay's hands; none if its lease may end meanwhile.
    fn take_run(&mut self, relay: usize, run: usize) -> Option<Run> {
        let margin = Duration::from_millis(10);
        self.hands[relay].retain(|run| Instant::now() + margin < run.until);
        let runs = self.hands[relay].len();
        (runs > 0).then(|| self.hands[relay].swap_remove(run % runs))
    }

    async fn handle(&mut self, relay: usize, run: usize, end: End) {
        let Some(mut run) = self.take_run(relay, run) else {
            return;
        };
        let event = match self.backwards {
            false => run.events.pop_front(),
            true => run.events.pop_back(),
        };
        let Some(event) = event else { return };
        let kind = self.published.iter().find(|one| one.id == event.id).unwrap().kind;
        let (how, outcome, goes_on) = judge(end, TYPES[kind].1);
        self.deliver(relay, &event, how).await;
        let mut settlements = vec![settlement(&event, outcome)];
        if !goes_on {
            let back = Outcome::Released {
                after: Duration::ZERO,
                done: Vec::new(),
            };
            settlements.extend(run.events.drain(..).map(|event| settlement(&event, back.clone())));
        }
        let settled = self.source.settle(settlements).await.unwrap();
        assert!(settled.lost.is_empty(), "settled within its lease, and refused");
        if how == Ending::Done {
            let what = What::Settled {
                event: event.id.as_uuid(),
                outcome: "completed".to_owned(),
            };
            self.note(&self.name(relay), what).await;
        }
        if !run.events.is_empty() {
            self.hands[relay].push(run);
        }
    }

    async fn deliver(&mut self, relay: usize, claimed: &Claimed, how: Ending) {
        let (name, event) = (self.name(relay), claimed.id.as_uuid());
        let started = What::Started {
            event,
            attempt: claimed.attempt,
            payload: "{}".to_owned(),
        };
        self.note(&name, started).await;
        self.note(&name, What::Ended { event, how }).await;
    }

    async fn crash(&mut self, relay: usize, handled: bool) {
        if handled && let Some(run) = self.take_run(relay, 0) {
            self.deliver(relay, &run.events[0], Ending::Done).await;
        }
        let victim = self.name(relay);
        let fault = "crash".to_owned();
        self.note(
            "run",
            What::Faulted {
                victim: victim.clone(),
                fault,
            },
        )
        .await;
        self.note("run", What::Healed { victim }).await;
        self.hands[relay].clear();
        self.lives[relay] += 1;
    }

    /// A failed event that nobody has discarded.
    fn failed(&self, nth: usize) -> Option<usize> {
        let failed = |n: &usize| {
            let one = &self.published[*n];
            !one.discarded && self.source.status(one.id) == Some(Status::Failed)
        };
        let all: Vec<usize> = (0..self.published.len()).filter(failed).collect();
        (!all.is_empty()).then(|| all[nth % all.len()])
    }

    async fn redrive(&mut self, nth: usize) {
        let Some(n) = self.failed(nth) else { return };
        let id = self.published[n].id;
        let what = What::Redriven {
            event: id.as_uuid(),
            ends: String::new(),
        };
        self.note("run", what).await;
        assert!(self.source.redrive(&TenantId::default(), id));
    }

    async fn discard(&mut self, nth: usize) {
        let Some(n) = self.failed(nth) else { return };
        let id = self.published[n].id;
        self.note("run", What::Discarded { event: id.as_uuid() }).await;
        assert!(self.source.discard(&TenantId::default(), id));
        self.published[n].discarded = true;
    }

    async fn resume(&mut self, key: u8) {
        let what = What::Resumed {
            key: key_of(key).to_string(),
        };
        self.note("run", what).await;
        self.source.resume(&TenantId::default(), &key_of(key));
    }

    /// No more faults: everything that is not given up has to be completed.
    pub(crate) async fn settle_all(&mut self) {
        for relay in 0..RELAYS {
            self.crash(relay, false).await;
        }
        while self.failed(0).is_some() {
            self.discard(0).await;
        }
        for key in 0..3 {
            self.resume(key).await;
        }
        for _ in 0..2_000 {
            if self.source.counts().pending == 0 {
                return;
            }
            self.claim(0, 100, None).await;
            while !self.hands[0].is_empty() {
                self.handle(0, 0, End::Complete).await;
            }
            tokio::time::advance(Duration::from_millis(20)).await;
        }
    }

    /// What the source says at the end is what the history has to fit.
    pub(crate) fn history(mut self) -> Vec<Record> {
        let mut intended = Vec::new();
        for (n, one) in self.published.iter().enumerate() {
            let status = match self.source.status(one.id).unwrap() {
                Status::Pending => "pending",
                Status::Completed => "completed",
                Status::Failed => "failed",
            };
            let event = one.id.as_uuid();
            let what = What::Intended {
                event,
                payload: "{}".to_owned(),
                key: one.key.clone(),
                // Whatever it is, but not pending.
                ends: status.replace("pending", "completed"),
                policy: TYPES[one.kind].1,
                delayed: one.delayed,
            };
            let record = |what| Record {
                at_us: -1,
                process: "publisher".to_owned(),
                what,
            };
            intended.push(record(what));
            let row = What::Row {
                event,
                status: status.to_owned(),
                retry_count: i32::try_from(self.source.failed_attempts(one.id).unwrap()).unwrap(),
                seq: i64::try_from(n).unwrap(),
                error: None,
            };
            self.records.push(Record {
                at_us: i64::MAX,
                ..record(row)
            });
            for redriven in &mut self.records {
                if let What::Redriven { event: of, ends } = &mut redriven.what
                    && *of == event
                {
                    *ends = status.replace("pending", "completed");
                }
            }
        }
        intended.append(&mut self.records);
        intended
    }
}

fn settlement(claimed: &Claimed, outcome: Outcome) -> Settlement {
    Settlement {
        token: claimed.token,
        position: claimed.position,
        id: claimed.id,
        outcome,
    }
}

/// How the handler ends, what is recorded, and whether the run goes on.
fn judge(end: End, policy: Policy) -> (Ending, Outcome, bool) {
    let (done, after) = (Vec::new(), |ms: u16| Duration::from_millis(ms.into()));
    let error = "no".to_owned();
    match end {
        End::Complete => (Ending::Done, Outcome::Completed, true),
        End::Retry(ms) => {
            let after = after(ms);
            (Ending::Failed, Outcome::Retry { after, error, done }, false)
        }
        End::Release(ms) => (
            Ending::CutOff,
            Outcome::Released {
                after: after(ms),
                done,
            },
            false,
        ),
        End::Fail => {
            let key = match policy {
                Policy::GoOn => KeyPolicy::GoOn,
                Policy::Stop => KeyPolicy::Stop,
                Policy::Park => KeyPolicy::Park,
            };
            (
                Ending::Failed,
                Outcome::Failed { error, done, key },
                policy == Policy::GoOn,
            )
        }
    }
}
