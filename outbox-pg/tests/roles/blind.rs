//! Tenants that are isolated under those who are at work: nobody goes on as if there were nothing.

use std::error::Error;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    ClaimRequest, Claimed, Delivered, Delivery, Dispatcher, Failure, Outcome, Relay, Settlement, Source,
    SourceErrorKind,
};

use crate::cast::Cast;
use crate::{DENIED, event};

struct Accepting;

#[async_trait]
impl Dispatcher for Accepting {
    async fn dispatch(&self, _: &Delivery) -> Result<Delivered, Failure> {
        Ok(Delivered::Handled)
    }
}

async fn within_a_minute(what: &str, happened: impl AsyncFn() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !happened().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_relay_that_becomes_blind_is_not_healthy_until_it_sees_again() {
    let cast = Cast::new().await;
    let source = cast.source("owner").start().await.unwrap();
    let relay = Relay::builder(Arc::new(source), Arc::new(Accepting))
        .poll_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let health = relay.health();
    let relay = relay.spawn();
    cast.publish("", event("1")).await.unwrap();
    within_a_minute("delivered", async || {
        cast.count("status = 'completed'").await == 1
    })
    .await;

    cast.isolate_tenants().await;
    cast.publish("a", event("1")).await.unwrap();
    within_a_minute("noticed", async || {
        health.consecutive_poll_errors() > 0 && !health.is_healthy(3)
    })
    .await;
    assert_eq!(cast.count("status = 'pending'").await, 1);

    cast.grant("relay", &cast.role("owner")).await;
    within_a_minute("delivered", async || {
        cast.count("status = 'completed'").await == 2
    })
    .await;
    within_a_minute("healthy", async || health.is_healthy(3)).await;
    relay.shutdown().await.unwrap();
    cast.leave().await;
}

#[tokio::test]
async fn a_claim_that_finds_nothing_because_it_is_blind_says_how_to_mend_that() {
    let cast = Cast::new().await;
    let source = cast.source("owner").start().await.unwrap();
    cast.isolate_tenants().await;

    let request = || ClaimRequest::new(NonZeroU32::new(10).unwrap(), Duration::from_secs(30));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let error = loop {
        match source.claim(request()).await {
            Err(error) => break error,
            Ok(claimed) => assert!(claimed.is_empty()),
        }
        assert!(tokio::time::Instant::now() < deadline, "nothing is said");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };

    assert_eq!(error.kind(), SourceErrorKind::Misconfigured);
    let owner = cast.role("owner");
    let cause = error.source().unwrap().to_string();
    assert_eq!(
        cause,
        format!(
            "role {owner} cannot see the events of every tenant in outbox.outbox; let the owner of the tables run: \
             SELECT \"outbox\".\"outbox_grant_relay\"('{owner}'), or give the role BYPASSRLS"
        )
    );
    // And again, as long as it lasts.
    source.claim(request()).await.unwrap_err();
    cast.leave().await;
}

#[tokio::test]
async fn a_blind_relay_ends_no_lease() {
    let cast = Cast::new().await;
    let source = cast.source("owner").start().await.unwrap();
    for _ in 0..2 {
        cast.publish("", event("1")).await.unwrap();
    }
    let request = ClaimRequest::new(NonZeroU32::new(1).unwrap(), Duration::from_secs(30));
    let claimed = source.claim(request.clone()).await.unwrap();
    let lost = source.claim(request.clone()).await.unwrap();
    cast.isolate_tenants().await;

    let settlement = |claimed: &Claimed| Settlement {
        token: claimed.token,
        position: claimed.position,
        id: claimed.id,
        outcome: Outcome::Completed,
    };
    source.settle(vec![settlement(&claimed[0])]).await.unwrap_err();
    cast.as_admin("UPDATE outbox.outbox_lease SET until = clock_timestamp() WHERE number = 2")
        .await;
    source.claim(request).await.unwrap_err();

    cast.grant("relay", &cast.role("owner")).await;
    let settled = source.settle(vec![settlement(&claimed[0])]).await.unwrap();
    assert!(settled.lost.is_empty());
    assert_eq!(cast.count("status = 'completed'").await, 1);
    drop(lost);
    cast.leave().await;
}

/// What operators call by hand.
const OPERATING: [&str; 10] = [
    "SELECT outbox.outbox_status()",
    "SELECT outbox.outbox_gauges(1000)",
    "SELECT outbox.outbox_find_failed('{}', clock_timestamp(), 0, NULL, false)",
    "SELECT outbox.outbox_begin_action('redrive', '{}')",
    "SELECT outbox.outbox_act(1, 100)",
    "SELECT outbox.outbox_resume('key', 'a', 'order-7')",
    "SELECT outbox.outbox_prune('7 days', false, 0, 100)",
    "SELECT outbox.outbox_prune_inbox('7 days', 0, 100)",
    "SELECT outbox.outbox_reopen('Counted', '1 hour')",
    "SELECT outbox.outbox_sweep()",
];

#[tokio::test]
async fn the_functions_of_operators_refuse_to_work_on_a_part_of_the_events() {
    let cast = Cast::new().await;
    let begin = "SELECT outbox.outbox_begin_action('redrive', '{}')";
    cast.run("owner", begin).await.unwrap();
    cast.isolate_tenants().await;

    for call in OPERATING {
        for tenant in ["", "SET app.current_tenant = 'a'; "] {
            let blind = cast.run("owner", &format!("{tenant}{call}")).await;
            assert_eq!(blind, Err(DENIED.to_owned()), "{call}");
        }
        let seeing = cast.run("relay", call).await;
        assert_eq!(seeing, Ok(()), "{call}");
    }
    cast.grant("relay", &cast.role("owner")).await;
    for call in OPERATING {
        let seeing = cast.run("owner", call).await;
        assert_eq!(seeing, Ok(()), "{call}");
    }
    cast.leave().await;
}
