//! From claimed events to work for the pool.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::Span;

use super::engine::{Asked, Engine, Held, SWEEP};
use super::error_text::bounded_text;
use super::lease::Lease;
use super::pace::FIRST_CLAIM;
use super::run::Run;
use super::settling::Unrecorded;
use super::work::{Item, Items, Work};
use crate::telemetry::{OutcomeLabel, log_line};
use crate::{
    Claimed, Delivery, EventType, KeyPolicy, OrderingKey, Outcome, PartName, Settlement, SourceError,
    TenantId,
};

impl Engine {
    /// Takes in the answer to a claim.
    pub(super) fn claimed(&mut self, answer: Result<Vec<Claimed>, SourceError>, now: Instant) {
        let Some(asked) = self.asked.take() else { return };
        let events = match answer {
            Ok(events) => events,
            Err(error) => return self.claim_failed(&error, now),
        };
        self.claim_answered();
        self.metrics.claimed(events.len());
        self.report.claimed += events.len() as u64;
        let full = self.pace.claimed(asked.request.max_events, events.len());
        self.settling
            .expect_many(full && asked.request.max_events >= FIRST_CLAIM);
        let before = self.held_bytes;
        let work = self.take_in(events, &asked, now);
        // A claim that ended early for its bytes says nothing about what is due.
        let heavy = self.held_bytes - before > asked.request.max_bytes / 2;
        if full || heavy {
            self.poll_again();
        }
        self.sweep_at.get_or_insert(now + SWEEP);
        self.health.set_in_flight(self.held.len());
        self.pool.push(work);
    }

    fn take_in(&mut self, events: Vec<Claimed>, asked: &Asked, now: Instant) -> Vec<Work> {
        let mut work: Vec<Work> = Vec::with_capacity(events.len());
        let mut runs: HashMap<(TenantId, OrderingKey), usize> = HashMap::new();
        let mut lease: Option<Arc<Lease>> = None;
        let mut blind = false;
        for claimed in events {
            blind = blind || self.blocks_unknown_key(&claimed);
            let of_claim = lease.take().filter(|lease| lease.token == claimed.token);
            let lease_of_claim = of_claim.unwrap_or_else(|| {
                let new = Arc::new(Lease::new(claimed.token, asked.at, asked.request.lease));
                self.leases.add(Arc::clone(&new), now);
                new
            });
            lease_of_claim.add_unsettled();
            lease = Some(Arc::clone(&lease_of_claim));
            let Some(item) = self.take_one(claimed, lease_of_claim, now) else {
                continue;
            };
            let envelope = &item.delivery.envelope;
            let Some(key) = &envelope.ordering_key else {
                work.push(Work::one(item));
                continue;
            };
            if blind {
                self.finish(item.not_tried(), now);
                continue;
            }
            match runs.entry((envelope.tenant_id.clone(), key.clone())) {
                std::collections::hash_map::Entry::Occupied(run) => {
                    if let Some(run) = work.get_mut(*run.get()) {
                        run.push(item);
                    }
                }
                std::collections::hash_map::Entry::Vacant(run) => {
                    run.insert(work.len());
                    work.push(Work::one(item));
                }
            }
        }
        for work in &work {
            self.note_run(work);
        }
        work.into_iter()
            .filter_map(|work| self.types.admit(work))
            .collect()
    }

    /// Whether an event fails that cannot be read and whose key does not go on then. Nobody here knows which key that is:
    /// what comes after it goes back, to a source that does.
    fn blocks_unknown_key(&mut self, claimed: &Claimed) -> bool {
        let unread = claimed.envelope.as_ref().err();
        let Some(event_type) = unread.and_then(|why| why.event_type.as_ref()) else {
            return false;
        };
        let rules = self.types.rules(event_type, &*self.dispatcher, &self.settings);
        rules.key != KeyPolicy::GoOn
    }

    /// Of a run one event is at work at a time: the others take no place.
    fn note_run(&mut self, work: &Work) {
        let Items::Run(items) = &work.items else { return };
        let run = Arc::new(Run::new(items.len()));
        for item in items {
            if let Some(held) = self.held_mut(item.held) {
                held.run = Some(Arc::clone(&run));
            }
        }
        self.behind += items.len() - 1;
    }

    /// Registers one event; those that no delivery can help are settled here.
    pub(super) fn take_one(&mut self, claimed: Claimed, lease: Arc<Lease>, now: Instant) -> Option<Item> {
        let hopeless = match &claimed.envelope {
            Err(why) => Some((why.to_string(), why.event_type.clone())),
            Ok(envelope) if claimed.lost_claims >= self.settings.max_lost.get() => {
                let error = format!(
                    "worker lost: {} claims of this event alone ended with its relay",
                    claimed.lost_claims
                );
                Some((error, Some(envelope.event_type.clone())))
            }
            Ok(_) => None,
        };
        if let Some((error, event_type)) = hopeless {
            self.fail_untried(claimed, lease, (error, event_type), now);
            return None;
        }
        let envelope = Arc::new(claimed.envelope.ok()?);
        let rules = self
            .types
            .rules(&envelope.event_type, &*self.dispatcher, &self.settings);
        let done = shared(claimed.done);
        let held = self.hold(|id| Held {
            id,
            event: claimed.id,
            position: claimed.position,
            attempt: claimed.attempt,
            done: (!done.is_empty()).then(|| Arc::clone(&done)),
            envelope: Arc::clone(&envelope),
            rules: Arc::clone(&rules),
            lease: Arc::clone(&lease),
            run: None,
            cancelled: claimed.lost.clone(),
            bytes: envelope.size() as u64,
        });
        let delivery = Delivery {
            envelope,
            attempt: claimed.attempt,
            done,
            // Set when the delivery begins.
            deadline: now,
            cancelled: claimed.lost,
            span: Span::none(),
        };
        Some(Item {
            held,
            delivery,
            lease,
            rules,
        })
    }

    fn fail_untried(
        &mut self,
        claimed: Claimed,
        lease: Arc<Lease>,
        (error, event_type): (String, Option<EventType>),
        now: Instant,
    ) {
        let rules =
            event_type.map(|event_type| self.types.rules(&event_type, &*self.dispatcher, &self.settings));
        let key = rules.map_or(KeyPolicy::default(), |rules| rules.key);
        let error = bounded_text(&error, self.settings.error_max_len);
        tracing::warn!(event.id = %claimed.id, error, "{}", log_line::EVENT_FAILED);
        let settlement = Settlement {
            token: claimed.token,
            position: claimed.position,
            id: claimed.id,
            outcome: Outcome::failed(error, claimed.done, key),
        };
        let outcome = Unrecorded {
            settlement,
            lease,
            run: None,
            label: OutcomeLabel::Failed,
            envelope: claimed.envelope.ok().map(Arc::new),
            unanswered: false,
        };
        self.settling.push(outcome, now);
    }
}

/// Most events have no part done: they share one empty list.
fn shared(done: Vec<PartName>) -> Arc<[PartName]> {
    static NONE: std::sync::OnceLock<Arc<[PartName]>> = std::sync::OnceLock::new();
    if done.is_empty() {
        Arc::clone(NONE.get_or_init(|| Arc::from([])))
    } else {
        Arc::from(done)
    }
}
