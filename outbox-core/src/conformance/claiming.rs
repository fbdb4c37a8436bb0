//! Clauses 1, 2, 3 and 14, and that an event is claimed as it was published.

use std::collections::HashSet;
use std::time::Duration;

use super::Harness;
use super::cases::{Case, LONG, event, ids, name, request, rich};
use crate::{ClaimRequest, EventId, EventType, Payload};

/// An event is claimed with everything that was published: ids, names, headers, and the same JSON.
pub async fn what_was_published_is_what_is_claimed(harness: &dyn Harness) {
    let case = Case::new(harness);
    let published = rich();
    case.publish_envelope(published.clone()).await;

    let claimed = case.claim_one(LONG).await;

    assert_eq!(claimed.attempt, 1);
    assert_eq!(claimed.lost_claims, 0);
    assert_eq!(claimed.done, []);
    assert_eq!(claimed.id, published.id);
    let envelope = claimed.envelope.unwrap_or_else(|why| panic!("{why}"));
    let json = |payload: &Payload| {
        payload
            .decode::<serde_json::Value>()
            .map_err(|error| error.to_string())
    };
    assert_eq!(json(&envelope.payload), json(&published.payload));
    assert_eq!(envelope.headers, published.headers);
    let rest = |envelope: crate::Envelope| {
        let crate::Envelope {
            id,
            event_type,
            aggregate_type,
            aggregate_id,
            ordering_key,
            tenant_id,
            ..
        } = envelope;
        (
            id,
            event_type,
            aggregate_type,
            aggregate_id,
            ordering_key,
            tenant_id,
        )
    };
    assert_eq!(rest(envelope), rest(published));
}

/// Clause 1.
pub async fn a_claimed_event_is_in_no_other_claim(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    case.publish("Plain").await;

    case.claim_until(2, LONG).await;

    case.expect_nothing_due("both events are claimed").await;
}

/// Clause 1, when claims meet.
pub async fn claims_at_the_same_time_share_nothing(harness: &dyn Harness) {
    let case = Case::new(harness);
    for _ in 0..60 {
        case.publish("Plain").await;
    }

    let claims = (0..8).map(|_| {
        let source = harness.source();
        tokio::spawn(async move {
            let mut claimed = Vec::new();
            for _ in 0..10 {
                claimed.extend(source.claim(request(7, LONG)).await.unwrap_or_default());
            }
            ids(&claimed)
        })
    });
    let mut all = Vec::new();
    for claim in claims.collect::<Vec<_>>() {
        all.extend(claim.await.unwrap_or_else(|error| panic!("{error}")));
    }
    all.extend(ids(&case.claim(LONG).await));

    let distinct: HashSet<EventId> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "an event was in two claims");
    assert_eq!(distinct.len(), 60, "not all events were claimed");
}

/// Clause 2.
pub async fn a_claim_stays_within_its_number_of_events(harness: &dyn Harness) {
    let case = Case::new(harness);
    for _ in 0..10 {
        case.publish("Plain").await;
    }

    let first = case.claim_request(request(3, LONG)).await;

    assert!(first.len() <= 3, "{:?}", ids(&first));
    case.claim_until(10 - first.len(), LONG).await;
}

/// Clause 2.
pub async fn a_claim_stays_within_its_bytes(harness: &dyn Harness) {
    let case = Case::new(harness);
    let large = format!("\"{}\"", "x".repeat(998));
    for _ in 0..5 {
        let mut envelope = event("Large");
        envelope.payload = Payload::from_json(large.as_str());
        case.publish_envelope(envelope).await;
    }
    let within = |bytes| request(100, LONG).with_max_bytes(bytes);

    let two = case.claim_request(within(2_500)).await;
    let alone = case.claim_request(within(10)).await;

    assert!(two.len() <= 2, "{} events of 1,000 bytes within 2,500", two.len());
    assert!(
        alone.len() <= 1,
        "{} events of 1,000 bytes within 10",
        alone.len()
    );
    assert!(
        two.len() + alone.len() >= 2,
        "a single event may exceed the bytes"
    );
    case.claim_until(5 - two.len() - alone.len(), LONG).await;
}

/// Clause 3.
pub async fn a_claim_takes_nothing_that_is_due_later(harness: &dyn Harness) {
    let case = Case::new(harness);
    let delay = harness.short_lease();
    let later = event("Later");
    let id = later.id;
    harness.publish(later, delay).await;

    case.expect_nothing_due("the event is due later").await;
    case.outlive(delay).await;

    assert_eq!(case.claim_one(LONG).await.id, id);
}

/// Clause 3.
pub async fn a_claim_takes_no_excluded_type(harness: &dyn Harness) {
    let case = Case::new(harness);
    let left_out = case.publish("LeftOut").await;
    let wanted = case.publish("Wanted").await;
    let without =
        || -> ClaimRequest { request(100, LONG).with_excluded_types(vec![name("LeftOut", EventType::new)]) };

    let mut first = Vec::new();
    for _ in 0..3 {
        first.extend(case.claim_request(without()).await);
        harness.pass(Duration::from_millis(5)).await;
    }

    assert_eq!(ids(&first), [wanted]);
    assert_eq!(case.claim_one(LONG).await.id, left_out);
}

/// Clause 14.
pub async fn an_event_that_cannot_be_decoded_is_claimed_with_the_reason(harness: &dyn Harness) {
    let case = Case::new(harness);
    let broken = EventId::new();
    harness.publish_undecodable(broken).await;
    let sound = case.publish("Plain").await;

    let claimed = case.claim_until(2, LONG).await;

    for claimed in claimed {
        assert_eq!(
            claimed.envelope.is_ok(),
            claimed.id == sound,
            "{:?}",
            claimed.envelope
        );
        assert!(claimed.id == sound || claimed.id == broken);
    }
}
