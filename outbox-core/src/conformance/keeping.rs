//! Clauses 5, 9, 10 and 16: leases that end, and leases that are kept.

use std::collections::HashSet;

use super::Harness;
use super::cases::{Case, LONG, ids, name, released, settlement};
use crate::{EventType, Outcome};

/// Clause 4, by time.
pub async fn a_claim_that_ended_cannot_be_settled(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let late = case.claim_one(harness.short_lease()).await;
    case.outlive(harness.short_lease()).await;

    let before = case.settle(&late, Outcome::Completed).await;
    let current = case.claim_one(LONG).await;
    let after = case.settle(&late, Outcome::Completed).await;

    let lost = [(late.token, late.position)];
    assert_eq!(before.lost, lost, "settled after its lease, before another claim");
    assert_eq!(after.lost, lost, "settled while another claim holds it");
    assert_eq!(harness.counts().await.completed, 0);
    case.must_settle(&current, Outcome::Completed).await;
}

/// Clause 5.
pub async fn what_is_left_of_a_settled_claim_stays_held(harness: &dyn Harness) {
    let case = Case::new(harness);
    for _ in 0..3 {
        case.publish("Plain").await;
    }
    let claimed = case.claim_until(3, LONG).await;

    case.must_settle(&claimed[0], Outcome::Completed).await;
    case.expect_nothing_due("two events are still held").await;
    let rest = claimed[1..]
        .iter()
        .map(|claimed| settlement(claimed, Outcome::Completed));
    let settled = case.settle_all(rest.collect()).await;

    assert_eq!(settled.lost, []);
    assert_eq!(harness.counts().await.completed, 3);
}

/// Clause 9.
pub async fn events_of_an_ended_lease_come_again_alone(harness: &dyn Harness) {
    let case = Case::new(harness);
    for _ in 0..3 {
        case.publish("Plain").await;
    }
    let first = case.claim_until(3, harness.short_lease()).await;
    case.outlive(harness.short_lease()).await;
    let fresh = case.publish("Plain").await;

    let second = case.claim_until(4, LONG).await;

    let again: Vec<_> = second.iter().filter(|claimed| claimed.id != fresh).collect();
    let tokens: HashSet<_> = second.iter().map(|claimed| claimed.token).collect();
    assert_eq!(tokens.len(), 4, "events of an ended lease share a claim");
    let earlier = ids(&first);
    for claimed in again {
        assert!(earlier.contains(&claimed.id));
        assert_eq!(claimed.attempt, 1, "a lost claim is no failed attempt");
        assert!(claimed.lost_claims <= 1);
    }
}

/// Clause 9.
pub async fn the_loss_of_a_lone_claim_is_counted(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let lease = harness.short_lease();
    case.claim_one(lease).await;
    case.outlive(lease).await;

    let lone = case.claim_one(lease).await;
    case.outlive(lease).await;
    let after = case.claim_one(LONG).await;

    assert_eq!(after.lost_claims, lone.lost_claims + 1);
    assert_eq!(after.attempt, 1);
    // Handing an event back is no loss.
    case.must_settle(&after, released(std::time::Duration::ZERO))
        .await;
    assert_eq!(case.claim_one(LONG).await.lost_claims, lone.lost_claims + 1);
}

/// Clause 9.
pub async fn the_loss_of_a_shared_claim_burns_nobody(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    case.publish("Plain").await;
    let lease = harness.short_lease();
    let shared = case.claim_until(2, lease).await;
    let was_shared = shared[0].token == shared[1].token;
    case.outlive(lease).await;

    let lone = case.claim_until(2, lease).await;

    let counts: Vec<_> = lone.iter().map(|claimed| claimed.lost_claims).collect();
    assert!(
        !was_shared || counts == [0, 0],
        "the loss of a shared claim was counted: {counts:?}"
    );
}

/// Clause 10.
pub async fn an_extended_claim_is_kept(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let lease = harness.short_lease();
    let claimed = case.claim_one(lease).await;

    let lost = case.source.extend(&[claimed.token], LONG).await;
    case.outlive(lease).await;

    assert_eq!(lost.ok(), Some(Vec::new()));
    case.expect_nothing_due("the claim was extended").await;
    case.must_settle(&claimed, Outcome::Completed).await;
}

/// Clause 10.
pub async fn extending_an_ended_claim_reports_it_and_revives_nothing(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let late = case.claim_one(harness.short_lease()).await;
    case.outlive(harness.short_lease()).await;

    let lost = case.source.extend(&[late.token], LONG).await;

    assert_eq!(lost.ok(), Some(vec![late.token]));
    assert_eq!(
        case.settle(&late, Outcome::Completed).await.lost,
        [(late.token, late.position)]
    );
    let current = case.claim_one(LONG).await;
    assert_eq!(current.id, late.id);
    let both = case.source.extend(&[late.token, current.token], LONG).await;
    assert_eq!(both.ok(), Some(vec![late.token]));
}

/// Clause 16.
pub async fn what_was_paused_since_it_was_claimed_is_named_and_stays_held(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let paused = case.publish("Paused").await;
    let claimed = case.claim_until(2, LONG).await;
    let tokens: Vec<_> = claimed.iter().map(|claimed| claimed.token).collect();
    let ask = async || {
        let answer = case.source.paused(&tokens).await;
        answer.unwrap_or_else(|error| panic!("what is paused is not known: {error:?}"))
    };
    assert_eq!(ask().await, [], "nothing is paused yet");

    harness.pause(&name("Paused", EventType::new)).await;

    let named = claimed.iter().filter(|claimed| claimed.id == paused);
    let named: Vec<_> = named.map(|claimed| (claimed.token, claimed.position)).collect();
    assert_eq!(ask().await, named);
    for claimed in &claimed {
        case.must_settle(claimed, Outcome::Completed).await;
    }
}
