//! What the cases of the suite have in common.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::Harness;
use crate::{
    ClaimRequest, Claimed, Envelope, EventId, EventType, OrderingKey, Outcome, PartName, Payload, Settled,
    Settlement, Source, TenantId,
};

/// A lease that does not end within a test.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// A source under test and the questions that most cases ask of it.
pub(super) struct Case<'a> {
    pub(super) harness: &'a dyn Harness,
    pub(super) source: Arc<dyn Source>,
}

impl<'a> Case<'a> {
    pub(super) fn new(harness: &'a dyn Harness) -> Self {
        Self {
            harness,
            source: harness.source(),
        }
    }

    /// Publishes an event of that type and returns its id.
    pub(super) async fn publish(&self, event_type: &str) -> EventId {
        self.publish_envelope(event(event_type)).await
    }

    pub(super) async fn publish_keyed(&self, key: &str) -> EventId {
        self.publish_envelope(keyed(key)).await
    }

    pub(super) async fn publish_envelope(&self, envelope: Envelope) -> EventId {
        let id = envelope.id;
        self.harness.publish(envelope, Duration::ZERO).await;
        id
    }

    pub(super) async fn claim_request(&self, request: ClaimRequest) -> Vec<Claimed> {
        let answer = self.source.claim(request).await;
        answer.unwrap_or_else(|error| panic!("the claim failed: {error:?}"))
    }

    /// One claim of up to 100 events.
    pub(super) async fn claim(&self, lease: Duration) -> Vec<Claimed> {
        self.claim_request(request(100, lease)).await
    }

    /// Claims until `count` events have come; fails when they do not, or when more come.
    pub(super) async fn claim_until(&self, count: usize, lease: Duration) -> Vec<Claimed> {
        let end = Instant::now() + self.harness.patience();
        let mut claimed = Vec::new();
        loop {
            claimed.extend(self.claim(lease).await);
            if claimed.len() >= count {
                assert_eq!(
                    claimed.len(),
                    count,
                    "more than was published: {:?}",
                    ids(&claimed)
                );
                return claimed;
            }
            assert!(
                Instant::now() < end,
                "of {count} events only these came: {:?}",
                ids(&claimed)
            );
            self.harness.pass(Duration::from_millis(20)).await;
        }
    }

    /// Claims until one event has come.
    pub(super) async fn claim_one(&self, lease: Duration) -> Claimed {
        let mut claimed = self.claim_until(1, lease).await;
        claimed.remove(0)
    }

    pub(super) async fn settle(&self, claimed: &Claimed, outcome: Outcome) -> Settled {
        self.settle_all(vec![settlement(claimed, outcome)]).await
    }

    pub(super) async fn settle_all(&self, settlements: Vec<Settlement>) -> Settled {
        let answer = self.source.settle(settlements).await;
        answer.unwrap_or_else(|error| panic!("the settlement failed: {error:?}"))
    }

    /// Settles, and insists that it took effect.
    pub(super) async fn must_settle(&self, claimed: &Claimed, outcome: Outcome) {
        let settled = self.settle(claimed, outcome).await;
        assert_eq!(settled.lost, [], "a held event was reported as lost");
    }

    /// Lets a short lease end.
    pub(super) async fn outlive(&self, lease: Duration) {
        self.harness.pass(lease + lease / 4).await;
    }

    /// Whether a claim comes back empty.
    pub(super) async fn expect_nothing_due(&self, why: &str) {
        let claimed = self.claim(LONG).await;
        assert!(
            claimed.is_empty(),
            "{why}, and yet these came: {:?}",
            ids(&claimed)
        );
    }
}

pub(super) fn event(event_type: &str) -> Envelope {
    let payload = Payload::from_json(r#"{"number": 1, "text": "two"}"#);
    Envelope::new(
        EventId::new(),
        name(event_type, EventType::new),
        payload,
        Timestamp::now(),
    )
}

pub(super) fn keyed(key: &str) -> Envelope {
    let mut envelope = event("Keyed");
    envelope.ordering_key = Some(name(key, OrderingKey::new));
    envelope
}

/// An event with everything that an envelope can hold.
pub(super) fn rich() -> Envelope {
    let mut envelope = keyed("key with spaces, é and 鍵");
    envelope.aggregate_type = Some(name("order", crate::AggregateType::new));
    envelope.aggregate_id = Some(name("A/17", crate::AggregateId::new));
    envelope.tenant_id = name("tenant-1", TenantId::new);
    envelope.headers = BTreeMap::from([
        (
            "traceparent".to_owned(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_owned(),
        ),
        ("quotes".to_owned(), "\"it's\" \\ fine".to_owned()),
    ]);
    envelope.payload =
        Payload::from_json(r#"{"deep": [1, 2.5, null, {"é": "\u0041"}], "big": 9007199254740993}"#);
    envelope
}

pub(super) fn name<T, E: std::fmt::Debug>(text: &str, make: impl FnOnce(String) -> Result<T, E>) -> T {
    make(text.to_owned()).unwrap_or_else(|error| panic!("{text} is a good name: {error:?}"))
}

pub(super) fn part(text: &str) -> PartName {
    name(text, PartName::new)
}

pub(super) fn request(max_events: u32, lease: Duration) -> ClaimRequest {
    ClaimRequest::new(NonZeroU32::new(max_events).unwrap_or(NonZeroU32::MIN), lease)
}

pub(super) fn settlement(claimed: &Claimed, outcome: Outcome) -> Settlement {
    Settlement {
        token: claimed.token,
        position: claimed.position,
        id: claimed.id,
        outcome,
    }
}

pub(super) fn ids(claimed: &[Claimed]) -> Vec<EventId> {
    claimed.iter().map(|claimed| claimed.id).collect()
}

pub(super) fn retry(after: Duration) -> Outcome {
    Outcome::Retry {
        after,
        error: "not yet".to_owned(),
        done: Vec::new(),
    }
}

pub(super) fn released(after: Duration) -> Outcome {
    Outcome::Released {
        after,
        done: Vec::new(),
    }
}

pub(super) fn failed(key: crate::KeyPolicy) -> Outcome {
    Outcome::Failed {
        error: "never".to_owned(),
        done: Vec::new(),
        key,
    }
}
