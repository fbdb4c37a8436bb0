//! One committed effect per event although the process is killed at every step of its handling.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_core::{Context, Event, Handler, HandlerError, Relay};
use outbox_inproc::Registry;
use outbox_pg::{Names, PgInbox, PgSource, Transactional, TxHandler};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgConnection, Row};
use support::World;

const EVENTS: i64 = 40;

/// Where in the handling of an event the process kills itself.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    BeforeTransaction,
    AfterRecord,
    AfterEffect,
    AfterCommit,
    Never,
}

const STEPS: [Step; 5] = [
    Step::BeforeTransaction,
    Step::AfterRecord,
    Step::AfterEffect,
    Step::AfterCommit,
    Step::Never,
];

#[derive(serde::Serialize, serde::Deserialize)]
struct Counted(i64);

impl Event for Counted {
    const EVENT_TYPE: &'static str = "Counted";
}

/// Kills the process when it comes by the step for the fifth time: as `kill -9` does, without a word to anybody.
#[derive(Clone)]
struct Killer {
    step: Step,
    count: Arc<AtomicU32>,
}

impl Killer {
    fn at(&self, step: Step) {
        if self.step == step && self.count.fetch_add(1, Ordering::SeqCst) == 4 {
            let me = std::process::id().to_string();
            Command::new("kill").args(["-KILL", &me]).status().unwrap();
            unreachable!("alive after SIGKILL");
        }
    }
}

struct Bill(Killer);

impl TxHandler<Counted> for Bill {
    async fn handle(&self, event: Counted, tx: &mut PgConnection, ctx: Context) -> Result<(), HandlerError> {
        self.0.at(Step::AfterRecord);
        sqlx::query("INSERT INTO effects (event_id, number) VALUES ($1, $2)")
            .bind(ctx.event_id().as_uuid())
            .bind(event.0)
            .execute(tx)
            .await?;
        self.0.at(Step::AfterEffect);
        Ok(())
    }
}

/// What happens around the transaction.
struct Around(Killer, Transactional<Bill>);

impl Handler<Counted> for Around {
    async fn handle(&self, event: Counted, ctx: Context) -> Result<(), HandlerError> {
        self.0.at(Step::BeforeTransaction);
        self.1.handle(event, ctx).await?;
        self.0.at(Step::AfterCommit);
        Ok(())
    }
}

/// The body of a child process: a relay that works until the outbox is empty, or until it kills itself.
#[tokio::test]
#[ignore = "the body of a child process of the test beside it"]
async fn relay_in_a_child() {
    let options: PgConnectOptions = std::env::var("OUTBOX_TEST_URL").unwrap().parse().unwrap();
    let step = std::env::var("OUTBOX_TEST_STEP").unwrap();
    let step = STEPS
        .into_iter()
        .find(|known| format!("{known:?}") == step)
        .unwrap();
    let killer = Killer {
        step,
        count: Arc::default(),
    };
    let pool = PgPoolOptions::new().connect_with(options.clone()).await.unwrap();
    let inbox = PgInbox::new(pool.clone(), &Names::default());
    let handler = Around(killer.clone(), inbox.transactional(Bill(killer)));
    let registry = Registry::new().on::<Counted>("billing", handler);
    let source = Arc::new(PgSource::builder(options).start().await.unwrap());
    let relay = Relay::builder(source, Arc::new(registry.build().unwrap()))
        .lease(Duration::from_secs(2))
        .handler_timeout(Duration::from_secs(1))
        .max_lost(100.try_into().unwrap())
        .concurrency(4.try_into().unwrap())
        .build()
        .unwrap()
        .spawn();

    let pending = "SELECT count(*) FROM outbox.outbox WHERE status = 'pending'";
    while sqlx::query(pending)
        .fetch_one(&pool)
        .await
        .unwrap()
        .get::<i64, _>(0)
        > 0
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.shutdown().await.unwrap();
}

fn child(world: &World, step: Step) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "relay_in_a_child", "--include-ignored", "--nocapture"])
        .env("OUTBOX_TEST_URL", world.database.url())
        .env("OUTBOX_TEST_STEP", format!("{step:?}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn every_event_has_one_committed_effect_although_relays_are_killed_at_every_step() {
    let world = World::new().await;
    world
        .run("CREATE TABLE effects (event_id uuid, number bigint)")
        .await;
    for n in 0..EVENTS {
        let key = (n % 2 == 0).then(|| outbox_core::OrderingKey::new(format!("k{}", n % 6)).unwrap());
        let event = outbox_core::NewEvent::of(&Counted(n)).unwrap();
        world
            .publish(match key {
                Some(key) => event.with_ordering_key(key),
                None => event,
            })
            .await;
    }

    for step in &STEPS[..4] {
        let killed = tokio::task::spawn_blocking({
            let mut child = child(&world, *step);
            move || child.wait().unwrap()
        });
        let end = killed.await.unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&end);
        assert_eq!(signal, Some(9), "{step:?} ended with {end}");
    }
    // What is left, by two relays at once.
    for mut child in [child(&world, Step::Never), child(&world, Step::Never)] {
        assert!(
            tokio::task::spawn_blocking(move || child.wait().unwrap())
                .await
                .unwrap()
                .success()
        );
    }

    assert_eq!(world.count("status = 'completed'").await, EVENTS);
    let row = sqlx::query(
        "SELECT count(*), count(DISTINCT event_id), (SELECT count(*) FROM outbox.processed_events) FROM effects",
    )
    .fetch_one(world.pool())
    .await
    .unwrap();
    assert_eq!(
        (row.get::<i64, _>(0), row.get::<i64, _>(1), row.get::<i64, _>(2)),
        (EVENTS, EVENTS, EVENTS)
    );
}
