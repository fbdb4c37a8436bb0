//! Clauses 11 and 12: order within a key.

use std::time::Duration;

use super::Harness;
use super::cases::{Case, LONG, failed, ids, keyed, name, released, request, retry, settlement};
use crate::{EventId, KeyPolicy, OrderingKey, Outcome, TenantId};

async fn publish_three(case: &Case<'_>, key: &str) -> [EventId; 3] {
    [
        case.publish_keyed(key).await,
        case.publish_keyed(key).await,
        case.publish_keyed(key).await,
    ]
}

/// Clause 11.
pub async fn events_of_one_key_are_in_one_claim_at_a_time(harness: &dyn Harness) {
    let case = Case::new(harness);
    let [first, ..] = publish_three(&case, "k").await;

    let held = case.claim_request(request(1, LONG)).await;
    assert_eq!(ids(&held), [first]);
    case.expect_nothing_due("the key is held").await;
    case.must_settle(&held[0], Outcome::Completed).await;

    let run = case.claim_until(2, LONG).await;
    assert_eq!(run[0].token, run[1].token, "a run of one key is one claim");
}

/// Clause 11.
pub async fn events_of_one_key_come_in_publish_order(harness: &dyn Harness) {
    let case = Case::new(harness);
    let mut published = Vec::new();
    for round in 0..10 {
        published.push(case.publish_keyed("ordered").await);
        if round % 3 == 0 {
            case.publish("Plain").await;
        }
    }

    let mut seen = Vec::new();
    while seen.len() < published.len() {
        let claimed = case.claim_request(request(3, LONG)).await;
        assert!(!claimed.is_empty(), "after {} events nothing comes", seen.len());
        let ordered = claimed.iter().filter(|claimed| published.contains(&claimed.id));
        seen.extend(ordered.map(|claimed| claimed.id));
        let all = claimed
            .iter()
            .map(|claimed| settlement(claimed, Outcome::Completed));
        assert_eq!(case.settle_all(all.collect()).await.lost, []);
    }

    assert_eq!(seen, published);
}

/// Clause 11.
pub async fn the_same_key_of_another_tenant_is_another_key(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish_keyed("k").await;
    case.claim_one(LONG).await;
    let mut other = keyed("k");
    other.tenant_id = name("other", TenantId::new);
    let id = case.publish_envelope(other).await;

    assert_eq!(case.claim_one(LONG).await.id, id);
}

/// Clause 11.
pub async fn a_retried_event_holds_up_its_key_and_no_other(harness: &dyn Harness) {
    let case = Case::new(harness);
    let [first, second, third] = publish_three(&case, "k").await;
    let wait = harness.short_lease();
    let held = case.claim_until(3, LONG).await;

    let outcomes = [retry(wait), released(Duration::ZERO), released(Duration::ZERO)];
    let all = held
        .iter()
        .zip(outcomes)
        .map(|(claimed, outcome)| settlement(claimed, outcome));
    assert_eq!(case.settle_all(all.collect()).await.lost, []);
    let free = case.publish_keyed("free").await;
    let fourth = case.publish_keyed("k").await;

    assert_eq!(case.claim_one(LONG).await.id, free);
    case.expect_nothing_due("the key waits for its first event").await;
    case.outlive(wait).await;
    let run = case.claim_until(4, LONG).await;
    assert_eq!(ids(&run), [first, second, third, fourth]);
    assert_eq!(run[0].attempt, 2);
}

/// Clause 11: a release with a wait, after an outage, keeps its place.
pub async fn a_released_event_goes_before_its_followers(harness: &dyn Harness) {
    let case = Case::new(harness);
    let first = case.publish_keyed("k").await;
    let wait = harness.short_lease();
    let held = case.claim_one(LONG).await;
    case.must_settle(&held, released(wait)).await;
    let second = case.publish_keyed("k").await;

    case.expect_nothing_due("the key waits for its first event").await;
    case.outlive(wait).await;

    assert_eq!(ids(&case.claim_until(2, LONG).await), [first, second]);
}

/// Clause 11.
pub async fn a_schedule_holds_up_nobody_before_it_is_due(harness: &dyn Harness) {
    let case = Case::new(harness);
    let scheduled = keyed("k");
    let later = scheduled.id;
    harness.publish(scheduled, LONG).await;
    let now = case.publish_keyed("k").await;

    let claimed = case.claim_one(LONG).await;

    assert_eq!(claimed.id, now);
    assert_ne!(claimed.id, later);
    case.must_settle(&claimed, Outcome::Completed).await;
}

/// Clause 12.
pub async fn a_failed_event_lets_its_key_go_on(harness: &dyn Harness) {
    let case = Case::new(harness);
    let [_, second, third] = publish_three(&case, "k").await;
    let held = case.claim_request(request(1, LONG)).await;

    case.must_settle(&held[0], failed(KeyPolicy::GoOn)).await;

    assert_eq!(ids(&case.claim_until(2, LONG).await), [second, third]);
}

/// Clause 12.
pub async fn a_stopped_key_waits_until_it_is_resumed(harness: &dyn Harness) {
    let case = Case::new(harness);
    let [_, second, third] = publish_three(&case, "k").await;
    let held = case.claim_request(request(1, LONG)).await;

    case.must_settle(&held[0], failed(KeyPolicy::Stop)).await;
    let fourth = case.publish_keyed("k").await;
    case.expect_nothing_due("the key is stopped").await;
    harness
        .resume(&TenantId::default(), &name("k", OrderingKey::new))
        .await;

    let run = case.claim_until(3, LONG).await;
    assert_eq!(ids(&run), [second, third, fourth]);
    for event in &run {
        case.must_settle(event, Outcome::Completed).await;
    }

    // Whoever redrives the event that has stopped its key has decided about the key too.
    let [first, second, third] = publish_three(&case, "l").await;
    let held = case.claim_request(request(1, LONG)).await;
    case.must_settle(&held[0], failed(KeyPolicy::Stop)).await;
    case.expect_nothing_due("the key is stopped").await;
    harness.redrive(&TenantId::default(), first).await;
    assert_eq!(ids(&case.claim_until(3, LONG).await), [first, second, third]);
}

/// Clause 12.
pub async fn a_parked_key_follows_its_failed_event(harness: &dyn Harness) {
    let case = Case::new(harness);
    let [first, second, third] = publish_three(&case, "k").await;
    let held = case.claim_request(request(1, LONG)).await;

    case.must_settle(&held[0], failed(KeyPolicy::Park)).await;
    let free = case.publish_keyed("free").await;
    assert_eq!(case.claim_one(LONG).await.id, free);
    case.expect_nothing_due("the key is parked").await;
    harness.redrive(&TenantId::default(), first).await;

    let run = case.claim_until(3, LONG).await;
    assert_eq!(ids(&run), [first, second, third]);
    assert_eq!(run[0].attempt, 1, "a redrive starts a new cycle of attempts");
}

/// Clause 12: two of a key fail in one claim, and are redriven one by one.
pub async fn a_key_with_several_failed_events_waits_for_each(harness: &dyn Harness) {
    let case = Case::new(harness);
    let tenant = TenantId::default();
    for policy in [KeyPolicy::Park, KeyPolicy::Stop] {
        for first_decided in 0..2 {
            let key = format!("{policy:?} {first_decided}");
            let three = publish_three(&case, &key).await;
            let held = case.claim_until(3, LONG).await;
            let outcomes = [failed(policy), failed(policy), released(Duration::ZERO)];
            let all = held.iter().zip(outcomes);
            let all = all.map(|(claimed, outcome)| settlement(claimed, outcome));
            assert_eq!(case.settle_all(all.collect()).await.lost, []);

            harness.redrive(&tenant, three[first_decided]).await;
            case.expect_nothing_due("the key waits for the other one").await;
            harness.redrive(&tenant, three[1 - first_decided]).await;

            let run = case.claim_until(3, LONG).await;
            assert_eq!(ids(&run), three, "{key}");
            for event in &run {
                case.must_settle(event, Outcome::Completed).await;
            }
        }
    }
}
