//! Order per key, over several relays that fail, release, lose and split their claims in every way.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{
    ClaimRequest, Claimed, EventType, KeyPolicy, NewEvent, OrderingKey, Outcome, Payload, Source,
};
use outbox_pg::PgSource;
use support::{World, outcome};
use tokio::time::Instant;

/// Shorter than any hiccup of the machine may last would only cost retries, never order.
const LEASE: Duration = Duration::from_millis(700);

#[derive(Debug, Clone)]
struct Handling {
    key: String,
    seq: i64,
    began: Instant,
    ended: Instant,
    /// Lease, type, outcome and whether it took effect, to be read when something is wrong.
    story: String,
    /// When the settlement that ended the event for good was sent, if it took effect.
    settled: Option<Instant>,
}

#[derive(Default)]
struct History(Mutex<Vec<Handling>>);

/// Publishes to random keys, each writer of a key holding that key's lock until its transaction ends.
async fn publish(world: Arc<World>, seed: u64, keys: u32, transactions: u32) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..transactions {
        let key = random.u32(0..keys);
        let mut transaction = world.pool().begin().await.unwrap();
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(i64::from(key))
            .execute(&mut *transaction)
            .await
            .unwrap();
        for _ in 0..random.u32(1..4) {
            let kind = ["A", "B", "C"][random.usize(0..3)];
            let mut event = NewEvent::raw(EventType::new(kind).unwrap(), Payload::from_json("{}"));
            if random.u32(0..10) > 0 {
                event = event.with_ordering_key(OrderingKey::new(format!("k{key}")).unwrap());
            }
            world.publisher.publish(&mut transaction, event).await.unwrap();
            tokio::time::sleep(Duration::from_millis(random.u64(0..6))).await;
        }
        match random.u32(0..5) {
            0 => transaction.rollback().await.unwrap(),
            _ => transaction.commit().await.unwrap(),
        }
    }
}

/// One relay by hand: claims, handles the runs of each claim in parallel, and settles in every way there is.
async fn relay(source: Arc<PgSource>, seed: u64, history: Arc<History>, end: Instant) {
    let mut random = fastrand::Rng::with_seed(seed);
    while Instant::now() < end {
        let excluded = match random.u32(0..4) {
            0 => vec![EventType::new("B").unwrap()],
            _ => Vec::new(),
        };
        let request = ClaimRequest::new(NonZeroU32::new(random.u32(1..40)).unwrap(), LEASE)
            .with_excluded_types(excluded);
        let claimed = source.claim(request).await.expect("claim");
        if claimed.is_empty() {
            tokio::time::sleep(Duration::from_millis(3)).await;
            continue;
        }
        let mut runs: BTreeMap<String, Vec<Claimed>> = BTreeMap::new();
        for (n, event) in claimed.into_iter().enumerate() {
            let key = event
                .envelope
                .as_ref()
                .unwrap()
                .ordering_key
                .as_ref()
                .map_or(format!("-{n}"), ToString::to_string);
            runs.entry(key).or_default().push(event);
        }
        let tasks = runs.into_iter().map(|(key, run)| {
            tokio::spawn(handle(
                Arc::clone(&source),
                key,
                run,
                random.u64(..),
                Arc::clone(&history),
            ))
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    }
}

async fn handle(source: Arc<PgSource>, key: String, run: Vec<Claimed>, seed: u64, history: Arc<History>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut rest = run.iter();
    while let Some(event) = rest.next() {
        let began = Instant::now();
        tokio::time::sleep(Duration::from_millis(random.u64(0..4))).await;
        let ended = Instant::now();
        let (result, last) = match random.u32(0..100) {
            0..80 => (Some(Outcome::Completed), false),
            80..88 => {
                let after = Duration::from_millis(random.u64(0..60));
                (
                    Some(Outcome::Retry {
                        after,
                        error: "no".into(),
                        done: vec![],
                    }),
                    true,
                )
            }
            88..92 => (
                Some(Outcome::Failed {
                    error: "never".into(),
                    done: vec![],
                    key: KeyPolicy::GoOn,
                }),
                false,
            ),
            92..97 => (
                Some(Outcome::Released {
                    after: Duration::from_millis(random.u64(0..2) * 20),
                    done: vec![],
                }),
                true,
            ),
            // The relay dies: nothing is settled any more.
            _ => (None, true),
        };
        let sent = Instant::now();
        let mut settlements: Vec<_> = result
            .iter()
            .map(|result| outcome(event, result.clone()))
            .collect();
        if last && result.is_some() {
            let released = Outcome::Released {
                after: Duration::ZERO,
                done: vec![],
            };
            settlements.extend(rest.by_ref().map(|event| outcome(event, released.clone())));
        }
        let finally = matches!(result, Some(Outcome::Completed | Outcome::Failed { .. }));
        let story = format!("{:?} {:?}", event.token, settlements);
        let lost = source.settle(settlements).await.expect("settle").lost;
        let took_effect = !lost.contains(&(event.token, event.position));
        let settled = (finally && took_effect).then_some(sent);
        history.0.lock().unwrap().push(Handling {
            key: key.clone(),
            seq: event.position.0,
            began,
            ended,
            settled,
            story: format!("{story} {took_effect}"),
        });
        if last || !took_effect {
            return;
        }
    }
}

/// Every violation of the rule that a key's events are handled one at a time, none before an earlier one is settled.
fn violations(history: &[Handling]) -> Vec<String> {
    let mut by_key: HashMap<&str, Vec<&Handling>> = HashMap::new();
    for handling in history.iter().filter(|handling| !handling.key.starts_with('-')) {
        by_key.entry(&handling.key).or_default().push(handling);
    }
    let mut found = Vec::new();
    for (key, mut handlings) in by_key {
        handlings.sort_by_key(|handling| handling.began);
        let settled: HashMap<i64, Instant> = handlings
            .iter()
            .filter_map(|handling| Some((handling.seq, handling.settled?)))
            .collect();
        let mut seqs: Vec<i64> = handlings.iter().map(|handling| handling.seq).collect();
        seqs.sort_unstable();
        seqs.dedup();
        for pair in handlings.windows(2) {
            if pair[1].began < pair[0].ended {
                found.push(format!(
                    "{key}: {} began before {} ended",
                    pair[1].seq, pair[0].seq
                ));
            }
        }
        for handling in &handlings {
            for earlier in seqs.iter().take_while(|seq| **seq < handling.seq) {
                if settled.get(earlier).is_none_or(|at| *at > handling.began) {
                    let near: Vec<_> = handlings
                        .iter()
                        .filter(|near| (*earlier..=handling.seq).contains(&near.seq))
                        .map(|near| {
                            format!(
                                "
   {} {:?}..{:?} {}",
                                near.seq, near.began, near.ended, near.story
                            )
                        })
                        .collect();
                    found.push(format!(
                        "{key}: {} began before {earlier} was settled: {}",
                        handling.seq,
                        near.concat()
                    ));
                }
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keys_events_are_handled_one_at_a_time_in_publish_order() {
    let world = Arc::new(World::new().await);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let history = Arc::new(History::default());
    let end = Instant::now() + Duration::from_secs(12);
    let mut relays = Vec::new();
    for n in 0..4 {
        let source = Arc::new(world.quiet_source().await);
        relays.push(tokio::spawn(relay(source, seed ^ n, Arc::clone(&history), end)));
    }
    let publishers: Vec<_> = (0..4)
        .map(|n| tokio::spawn(publish(Arc::clone(&world), seed ^ (n + 100), 25, 120)))
        .collect();

    for publisher in publishers {
        publisher.await.unwrap();
    }
    for relay in relays {
        relay.await.unwrap();
    }

    // What is still pending has to come out with a calm relay: nothing may be stranded.
    let source = world.quiet_source().await;
    let calm_end = Instant::now() + Duration::from_secs(30);
    while world.count("status = 'pending'").await > 0 {
        assert!(
            Instant::now() < calm_end,
            "stranded: {}",
            world.count("status = 'pending'").await
        );
        let claimed = source
            .claim(ClaimRequest::new(NonZeroU32::new(100).unwrap(), LEASE))
            .await
            .unwrap();
        let settlements = claimed
            .iter()
            .map(|event| outcome(event, Outcome::Completed))
            .collect();
        source.settle(settlements).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let history = history.0.lock().unwrap().clone();
    assert!(
        history.len() > 500,
        "only {} handlings: the test shows nothing",
        history.len()
    );
    let violations = violations(&history);
    assert!(
        violations.is_empty(),
        "{} violations, seed {seed}: {:#?}",
        violations.len(),
        &violations[..violations.len().min(10)]
    );
}
