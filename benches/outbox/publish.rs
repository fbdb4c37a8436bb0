//! What publishing costs a transaction: the default wake-up, and NOTIFY always, beside the same INSERT without any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use outbox::{Names, PgPublisher};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use crate::harness::{Lab, Report, Size, Target, event};

/// Without the trigger, not merely told to wake nobody.
const NO_TRIGGER: &str = "no trigger";
const TIME: Duration = Duration::from_secs(3);

/// How relays are woken, and whether one sleeps.
const WAYS: [(&str, &str, bool); 4] = [
    ("no wake-up", NO_TRIGGER, false),
    ("default, relay awake", "handshake", false),
    ("default, relay asleep", "handshake", true),
    ("NOTIFY always", "always", false),
];

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    lab.execute(
        "CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL)",
    )
    .await;
    let mut report = Report::new("publish");
    for _ in 0..size.rounds {
        for clients in [8, 32] {
            for (label, wake, asleep) in WAYS {
                let rate = contend(&lab, clients, wake, asleep).await;
                report.add(&format!("{label}, {clients} clients"), &[("tx/s", rate)]);
            }
        }
        let (single, many) = (in_turn(&lab, 1).await, in_turn(&lab, 100).await);
        report.add("100 events, one by one", &[("events/s", single)]);
        report.add("100 events, publish_all", &[("events/s", many)]);
    }
    for clients in [8, 32] {
        let of = |label: &str| format!("{label}, {clients} clients");
        let floor = of("no wake-up");
        report.compare("tx/s", &of("default, relay awake"), &floor, Target::AtLeast(0.9));
        report.compare("tx/s", &of("default, relay asleep"), &floor, Target::None);
        let always = of("NOTIFY always");
        report.compare("tx/s", &of("default, relay awake"), &always, Target::AtLeast(2.0));
    }
    report.compare(
        "events/s",
        "100 events, publish_all",
        "100 events, one by one",
        Target::AtLeast(5.0),
    );
    report.finish();
}

/// Transactions per second of clients that each write a business row and an event. No relay runs, or it would compete for
/// the processors: one that is awake shows to publishers only in that nobody holds the sleeper's lock.
async fn contend(lab: &Lab, clients: usize, wake: &str, asleep: bool) -> f64 {
    let (trigger, wake) = match wake {
        NO_TRIGGER => ("DISABLE", "never"),
        wake => ("ENABLE", wake),
    };
    lab.execute("TRUNCATE outbox.outbox, business").await;
    lab.execute(&format!(
        "ALTER TABLE outbox.outbox {trigger} TRIGGER outbox_wake"
    ))
    .await;
    let mut sleeper = lab.connect().await;
    if asleep {
        let sql = "LISTEN outbox_new; SELECT pg_advisory_lock(outbox.outbox_lock_number(2))";
        sleeper.execute(sql).await.unwrap();
    }
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for client in 0..clients {
        let mut connection = lab.connect().await;
        let set = format!("SET outbox.wake = '{wake}'");
        connection.execute(AssertSqlSafe(set)).await.unwrap();
        let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
        tasks.push(tokio::spawn(async move {
            let publisher = PgPublisher::new(&Names::default());
            while !stop.load(Ordering::Relaxed) {
                transact(&mut connection, &publisher, client).await;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    tokio::time::sleep(TIME / 6).await;
    let (began, first) = (Instant::now(), done.load(Ordering::Relaxed));
    tokio::time::sleep(TIME).await;
    let rate = (done.load(Ordering::Relaxed) - first) as f64 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let published = lab.number("SELECT count(*) FROM outbox.outbox").await;
    let committed = lab.number("SELECT count(*) FROM business").await;
    assert_eq!(published, committed);
    assert_eq!(
        published,
        i64::try_from(done.load(Ordering::Relaxed)).unwrap(),
        "lost or doubled"
    );
    sleeper.close().await.unwrap();
    rate
}

async fn transact(connection: &mut PgConnection, publisher: &PgPublisher, n: usize) {
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query("INSERT INTO business (note) VALUES ($1)")
        .bind("placed")
        .execute(&mut *transaction)
        .await
        .unwrap();
    publisher.publish(&mut transaction, event(n, 0)).await.unwrap();
    transaction.commit().await.unwrap();
}

/// Events per second of one connection that publishes 100 per transaction, so many per statement.
async fn in_turn(lab: &Lab, per_statement: usize) -> f64 {
    lab.execute("TRUNCATE outbox.outbox").await;
    let mut connection = lab.connect().await;
    let publisher = PgPublisher::new(&Names::default());
    let (began, mut published) = (Instant::now(), 0);
    while began.elapsed() < TIME / 2 {
        let mut transaction = connection.begin().await.unwrap();
        for start in (0..100).step_by(per_statement) {
            let events = (start..start + per_statement).map(|n| event(n, 0));
            if per_statement == 1 {
                publisher
                    .publish(&mut transaction, event(start, 0))
                    .await
                    .unwrap();
            } else {
                publisher.publish_all(&mut transaction, events).await.unwrap();
            }
        }
        transaction.commit().await.unwrap();
        published += 100;
    }
    let rate = f64::from(published) / began.elapsed().as_secs_f64();
    assert_eq!(
        lab.number("SELECT count(*) FROM outbox.outbox").await,
        i64::from(published)
    );
    rate
}
