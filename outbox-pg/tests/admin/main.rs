//! Looking at an outbox and changing it by hand.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod figures;
mod functions;
mod pause;
mod prune;
mod redrive;
mod relay;
#[path = "../support/mod.rs"]
mod support;

use outbox_core::{Claimed, EventType, KeyPolicy, NewEvent, OrderingKey, Outcome};
use outbox_pg::admin::PgAdmin;
use outbox_pg::{Names, PgSource};

use support::{World, claim, event, payload};

fn admin(world: &World) -> PgAdmin {
    PgAdmin::new(world.pool().clone(), &Names::default()).acting_as("ada")
}

fn keyed(n: u32, key: &str) -> NewEvent {
    event(&n.to_string()).with_ordering_key(OrderingKey::new(key).unwrap())
}

fn failed(key: KeyPolicy) -> Outcome {
    Outcome::Failed {
        error: "the card was refused".to_owned(),
        done: Vec::new(),
        key,
    }
}

async fn settle(source: &PgSource, claimed: &Claimed, end: Outcome) {
    support::settle(source, std::slice::from_ref(claimed), end).await;
}

/// Claims and completes until nothing is due; returns the payloads in the order of their claims.
async fn drain(source: &PgSource) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let claimed = claim(source, 100).await;
        if claimed.is_empty() {
            return all;
        }
        for one in &claimed {
            all.push(payload(one));
            settle(source, one, Outcome::Completed).await;
        }
    }
}

fn counted() -> EventType {
    EventType::new("Counted").unwrap()
}
