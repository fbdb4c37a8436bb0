//! Clauses 4 to 8 and 15.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::Harness;
use super::cases::{Case, LONG, failed, name, part, released, request, retry, settlement};
use crate::{ClaimToken, KeyPolicy, Outcome};

/// Clause 4.
pub async fn a_settlement_with_another_token_changes_nothing(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let claimed = case.claim_one(LONG).await;
    let mut forged = settlement(&claimed, Outcome::Completed);
    forged.token = ClaimToken::from_parts(claimed.token.number(), claimed.token.secret().wrapping_add(1));

    let settled = case.settle_all(vec![forged.clone()]).await;

    assert_eq!(settled.lost, [(forged.token, forged.position)]);
    assert_eq!(harness.counts().await.pending, 1);
    case.must_settle(&claimed, Outcome::Completed).await;
}

/// Clause 4: what is settled is held no more.
pub async fn a_settled_event_cannot_be_settled_again(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let claimed = case.claim_one(LONG).await;
    case.must_settle(&claimed, Outcome::Completed).await;

    let settled = case.settle(&claimed, failed(KeyPolicy::GoOn)).await;

    assert_eq!(settled.lost, [(claimed.token, claimed.position)]);
    let counts = harness.counts().await;
    assert_eq!((counts.completed, counts.failed), (1, 0));
}

/// Clause 6.
pub async fn a_completed_event_is_never_claimed_again(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let claimed = case.claim_one(harness.short_lease()).await;

    case.must_settle(&claimed, Outcome::Completed).await;
    case.outlive(harness.short_lease()).await;

    case.expect_nothing_due("the event is completed").await;
    let counts = harness.counts().await;
    assert_eq!((counts.pending, counts.completed, counts.failed), (0, 1, 0));
}

/// Clause 6.
pub async fn a_failed_event_is_never_claimed_again(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let claimed = case.claim_one(harness.short_lease()).await;

    case.must_settle(&claimed, failed(KeyPolicy::GoOn)).await;
    case.outlive(harness.short_lease()).await;

    case.expect_nothing_due("the event has failed for good").await;
    let counts = harness.counts().await;
    assert_eq!((counts.pending, counts.completed, counts.failed), (0, 0, 1));
}

/// Clause 7.
pub async fn a_retried_event_comes_again_with_the_next_attempt(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let wait = harness.short_lease();
    let first = case.claim_one(LONG).await;
    let because = "no such \"customer\", it's said: {7}";
    let refusal = name("ledger", |text| part(&text).refusal_because(because));
    let outcome = Outcome::Retry {
        after: wait,
        error: "a text with a quote ' and a line\nbreak".to_owned(),
        done: vec![part("mail"), refusal.clone(), part("billing")],
    };

    case.must_settle(&first, outcome).await;
    case.expect_nothing_due("the retry's time has not come").await;
    case.outlive(wait).await;
    let second = case.claim_one(LONG).await;

    assert_eq!((second.id, second.attempt), (first.id, 2));
    assert_eq!(second.lost_claims, 0);
    let mut done = second.done.clone();
    done.sort();
    assert_eq!(done, [refusal, part("billing"), part("mail")]);
    assert_ne!(second.token, first.token, "a token is never given out twice");
}

/// Clause 8.
pub async fn a_released_event_comes_again_without_counting_an_attempt(harness: &dyn Harness) {
    let case = Case::new(harness);
    case.publish("Plain").await;
    let first = case.claim_one(LONG).await;

    case.must_settle(&first, released(Duration::ZERO)).await;
    let second = case.claim_one(LONG).await;
    assert_eq!((second.id, second.attempt), (first.id, 1));

    let wait = harness.short_lease();
    case.must_settle(&second, released(wait)).await;
    case.expect_nothing_due("the released event's time has not come")
        .await;
    case.outlive(wait).await;

    assert_eq!(case.claim_one(LONG).await.attempt, 1);
}

/// Clause 15: calls are dropped after so many polls, for as many as they may take.
pub async fn dropped_calls_leave_at_most_a_claim_that_ends(harness: &dyn Harness) {
    let case = Case::new(harness);
    let lease = harness.short_lease();
    for polls in 0..12 {
        case.publish("Plain").await;
        drop_after(polls, case.source.claim(request(10, lease))).await;
        drop_after(polls, case.source.extend(&[], lease)).await;
        drop_after(polls, case.source.wait(Duration::from_secs(5))).await;
    }
    case.outlive(lease).await;
    let claimed = case.claim_until(12, LONG).await;

    // Recorded whole or not at all, and either way all of it can be settled once more.
    for (polls, claimed) in claimed.iter().enumerate() {
        let call = case
            .source
            .settle(vec![settlement(claimed, retry(Duration::ZERO))]);
        drop_after(polls, call).await;
        case.settle(claimed, retry(Duration::ZERO)).await;
    }
    let again = case.claim_until(12, LONG).await;

    for claimed in &again {
        assert_eq!(claimed.attempt, 2, "a retry was counted twice, or not at all");
        case.must_settle(claimed, Outcome::Completed).await;
    }
}

/// Polls a future so many times, and drops it.
async fn drop_after<F: Future>(polls: usize, future: F) {
    let mut future = Box::pin(future);
    let mut left = polls;
    poll_fn(move |cx| {
        if left == 0 || future.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        left -= 1;
        Poll::Pending
    })
    .await;
}
