//! Settlements beside what an operator does, and beside claims: they take no lock that all of them share.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Claimed, EventId, KeyPolicy, NewEvent, OrderingKey, Outcome, Source, TenantId};
use outbox_pg::admin::{FailedFilter, PgAdmin};
use outbox_pg::{Names, PgSource};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use support::{World, claim, event, outcome};
use tokio::time::Instant;

fn keyed(key: &str) -> NewEvent {
    event("1").with_ordering_key(OrderingKey::new(key).unwrap())
}

fn admin(world: &World) -> PgAdmin {
    PgAdmin::new(world.pool().clone(), &Names::default())
}

fn retry(after: Duration) -> Outcome {
    Outcome::Retry {
        after,
        error: "later".to_owned(),
        done: Vec::new(),
    }
}

fn failed(key: KeyPolicy) -> Outcome {
    Outcome::Failed {
        error: "never".to_owned(),
        done: Vec::new(),
        key,
    }
}

async fn settle(source: &PgSource, claimed: &Claimed, end: Outcome) {
    support::settle(source, std::slice::from_ref(claimed), end).await;
}

/// Claims one event that must be there.
async fn one(source: &PgSource) -> Claimed {
    let mut claimed = claim(source, 1).await;
    assert_eq!(claimed.len(), 1, "nothing is due");
    claimed.remove(0)
}

/// Publishes an event of the key and has it fail for good.
async fn fail(world: &World, source: &PgSource) -> EventId {
    let id = world.publish(keyed("k")).await;
    settle(source, &one(source).await, failed(KeyPolicy::GoOn)).await;
    id
}

/// Settles an event while an operator's change of its key is made and not yet committed.
async fn settle_beside(world: &World, source: Arc<PgSource>, claimed: Claimed, change: &str) {
    let mut operator = PgConnection::connect(world.database.url()).await.unwrap();
    operator.execute("BEGIN").await.unwrap();
    operator.execute(AssertSqlSafe(change.to_owned())).await.unwrap();
    let settling = tokio::spawn(async move { settle(&source, &claimed, Outcome::Completed).await });
    // Either it waits for the operator, or it is through.
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    loop {
        let count: i64 = sqlx::query(waiting).fetch_one(world.pool()).await.unwrap().get(0);
        if count > 0 || settling.is_finished() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    operator.execute("COMMIT").await.unwrap();
    settling.await.unwrap();
}

#[tokio::test]
async fn a_key_that_is_resumed_while_its_event_is_settled_goes_on() {
    let world = World::new().await;
    let source = Arc::new(world.quiet_source().await);
    world.publish(keyed("k")).await;
    settle(&source, &one(&source).await, retry(Duration::ZERO)).await;
    let second = world.publish(keyed("k")).await;
    let first = one(&source).await;
    let key = OrderingKey::new("k").unwrap();
    admin(&world)
        .pause_key(&TenantId::default(), &key, "")
        .await
        .unwrap();

    let change = "SELECT outbox.outbox_resume('key', '', 'k')";
    settle_beside(&world, Arc::clone(&source), first, change).await;

    assert_eq!(one(&source).await.id, second);
}

#[tokio::test]
async fn an_event_that_is_redriven_while_one_of_its_key_is_settled_comes() {
    let world = World::new().await;
    let source = Arc::new(world.quiet_source().await);
    let first = fail(&world, &source).await;
    let second = fail(&world, &source).await;
    let redrive = admin(&world)
        .redrive(&FailedFilter::ids([first]), "")
        .await
        .unwrap();
    assert_eq!(redrive.run().await.unwrap().changed, 1);
    let first = one(&source).await;

    let change = format!(
        "SELECT outbox.outbox_act(outbox.outbox_begin_action('redrive', '{{\"ids\": [\"{second}\"]}}'), 10)"
    );
    settle_beside(&world, Arc::clone(&source), first, &change).await;

    assert_eq!(one(&source).await.id, second);
}

/// What a claim finds that had read what stands in the way before the event in flight was settled like this.
async fn found_after(end: Outcome) -> Option<i32> {
    let world = World::new().await;
    let source = world.quiet_source().await;
    world.publish(keyed("k")).await;
    let first = one(&source).await;
    world.publish(keyed("k")).await;
    let mut claiming = PgConnection::connect(world.database.url()).await.unwrap();
    let facts = "CREATE TEMP TABLE facts AS
        SELECT outbox.outbox_read_facts(gen_random_uuid(), clock_timestamp()) AS facts";
    claiming.execute(facts).await.unwrap();

    settle(&source, &first, end).await;

    let look =
        "SELECT cardinality((outbox.outbox_look(facts, 10, '{}', clock_timestamp())).fresh_ids) FROM facts";
    sqlx::query(look).fetch_one(&mut claiming).await.unwrap().get(0)
}

#[tokio::test]
async fn a_claim_overtakes_nothing_that_was_settled_since_it_began() {
    assert_eq!(found_after(retry(Duration::from_secs(3600))).await, None);
    assert_eq!(found_after(failed(KeyPolicy::Stop)).await, None);
    assert_eq!(found_after(failed(KeyPolicy::Park)).await, None);
    // The key was free, and nothing is in the way.
    assert_eq!(found_after(failed(KeyPolicy::GoOn)).await, Some(1));
    assert_eq!(found_after(Outcome::Completed).await, Some(1));
}

/// How many events are still to be settled for good.
async fn unfinished(world: &World) -> i64 {
    world.count("status <> 'completed'").await
}

/// Claims, and settles each claim in one go, with every outcome there is, until all is completed.
async fn relay(world: Arc<World>, seed: u64) {
    let source = world.quiet_source().await;
    let mut random = fastrand::Rng::with_seed(seed);
    let deadline = Instant::now() + Duration::from_secs(120);
    while unfinished(&world).await > 0 {
        assert!(
            Instant::now() < deadline,
            "{} events are left",
            unfinished(&world).await
        );
        let claimed = claim(&source, random.u32(1..60)).await;
        let settlements = claimed.iter().map(|event| {
            let end = match random.u32(0..10) {
                0..4 => Outcome::Completed,
                4 => retry(Duration::from_millis(random.u64(0..10))),
                5 => Outcome::Released {
                    after: Duration::ZERO,
                    done: Vec::new(),
                },
                _ => failed(KeyPolicy::GoOn),
            };
            outcome(event, end)
        });
        source.settle(settlements.collect()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(random.u64(0..4))).await;
    }
}

/// Redrives what has failed, again and again.
async fn redrive(world: Arc<World>) {
    while unfinished(&world).await > 0 {
        let action = admin(&world).redrive(&FailedFilter::all(), "").await.unwrap();
        action.run().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The server's count, once every other session has ended and told it.
async fn deadlocks(world: &World) -> i64 {
    let others = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let mut connection = PgConnection::connect(world.database.url()).await.unwrap();
    world.pool().close().await;
    let deadline = Instant::now() + Duration::from_secs(30);
    while sqlx::query_scalar::<_, i64>(others)
        .fetch_one(&mut connection)
        .await
        .unwrap()
        > 0
    {
        assert!(Instant::now() < deadline, "sessions are left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sqlx::query_scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settlements_and_redrives_never_lock_each_other_out() {
    let world = Arc::new(World::new().await);
    world
        .publish_range(0..1_500, |n| Some(format!("k{}", n % 60)))
        .await;
    let tasks = [
        tokio::spawn(relay(Arc::clone(&world), 1)),
        tokio::spawn(relay(Arc::clone(&world), 2)),
        tokio::spawn(redrive(Arc::clone(&world))),
    ];
    for task in tasks {
        task.await.unwrap();
    }

    assert_eq!(deadlocks(&world).await, 0);
}
