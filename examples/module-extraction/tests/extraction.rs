//! The module moves out, and nobody notices: not the publishers, not the handlers, whatever goes down meanwhile.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use module_extraction::orders::{self, OrderPlaced};
use outbox_dev::{DevKafka, KafkaStop, TestDatabase};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::{Pid, Signal, kill_process};
use sqlx::PgPool;

const CUSTOMERS: i64 = 200;
const DEAD_LETTERS: &str = "shop.billing.dead";

/// A program of the example; ended with this handle.
struct Program {
    path: &'static str,
    settings: Vec<(&'static str, String)>,
    child: Child,
}

impl Program {
    fn start(path: &'static str, settings: Vec<(&'static str, String)>) -> Self {
        let child = spawn(path, &settings);
        Self {
            path,
            settings,
            child,
        }
    }

    /// As after a power cut.
    fn kill_and_start_again(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.path, &self.settings);
    }

    /// In good order.
    fn stop(mut self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(path: &str, settings: &[(&str, String)]) -> Child {
    let mut command = Command::new(path);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // What a killed relay held is taken over after the lease.
        .env("OUTBOX_LEASE_SECS", "13")
        .env("OUTBOX_HANDLER_TIMEOUT_SECS", "12");
    settings.iter().for_each(|(name, value)| {
        command.env(name, value);
    });
    command.spawn().unwrap()
}

fn monolith(database: &TestDatabase) -> Program {
    Program::start(
        env!("CARGO_BIN_EXE_monolith"),
        vec![("DATABASE_URL", database.url().to_owned())],
    )
}

fn on_kafka(path: &'static str, database: &TestDatabase, kafka: &DevKafka) -> Program {
    let settings = vec![
        ("DATABASE_URL", database.url().to_owned()),
        ("OUTBOX_KAFKA_BOOTSTRAP", kafka.bootstrap().to_owned()),
    ];
    Program::start(path, settings)
}

async fn create_topics(kafka: &DevKafka) {
    let admin: AdminClient<DefaultClientContext> = ClientConfig::new()
        .set("bootstrap.servers", kafka.bootstrap())
        .create()
        .unwrap();
    let topics = [
        NewTopic::new("shop.order", 12, TopicReplication::Fixed(1)),
        NewTopic::new(DEAD_LETTERS, 1, TopicReplication::Fixed(1)),
    ];
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(30)));
    for created in admin.create_topics(&topics, &options).await.unwrap() {
        created.unwrap();
    }
}

fn dead_letters(kafka: &DevKafka) -> i64 {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", kafka.bootstrap())
        .create()
        .unwrap();
    consumer
        .fetch_watermarks(DEAD_LETTERS, 0, Duration::from_secs(30))
        .unwrap()
        .1
}

/// The orders from `first` on: every customer orders in turn.
fn some_orders(first: i64, count: i64) -> Vec<OrderPlaced> {
    let order = |order| OrderPlaced {
        order,
        customer: format!("customer-{}", order % CUSTOMERS),
        number: order / CUSTOMERS,
        cents: 100 + order,
    };
    (first..first + count).map(order).collect()
}

async fn count(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// The bills, once there is a table of them.
async fn bills(pool: &PgPool) -> i64 {
    let there = "SELECT count(*) FROM pg_tables WHERE tablename = 'bills'";
    if count(pool, there).await == 0 {
        return 0;
    }
    count(pool, "SELECT count(*) FROM bills").await
}

async fn until_billed(pool: &PgPool, expected: i64, patience: Duration) {
    let start = Instant::now();
    loop {
        let bills = bills(pool).await;
        if bills >= expected {
            return;
        }
        assert!(
            start.elapsed() < patience,
            "{bills} of {expected} orders are billed"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// One bill per order, and each customer's in the order in which they ordered.
async fn assert_sound(pool: &PgPool, expected: i64) {
    let distinct = count(pool, "SELECT count(DISTINCT order_id) FROM bills").await;
    let out_of_order = "SELECT count(*) FROM (
        SELECT number, lag(number) OVER (PARTITION BY customer ORDER BY id) AS before FROM bills
    ) AS each WHERE number < before";
    assert_eq!((bills(pool).await, distinct), (expected, expected));
    assert_eq!(count(pool, out_of_order).await, 0);
}

/// Waits until the program has made the outbox's tables.
async fn until_ready(pool: &PgPool) {
    let start = Instant::now();
    while count(pool, "SELECT count(*) FROM pg_tables WHERE tablename = 'orders'").await == 0 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the monolith does not start"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_switch_is_made_between_two_orders() {
    let (shop, billing) = (
        TestDatabase::create().await.unwrap(),
        TestDatabase::create().await.unwrap(),
    );
    let kafka = DevKafka::start_own().await.unwrap();
    create_topics(&kafka).await;

    let before = monolith(&shop);
    until_ready(shop.pool()).await;
    orders::place(shop.pool(), &some_orders(0, 400)).await.unwrap();
    until_billed(shop.pool(), 400, Duration::from_secs(60)).await;
    before.stop();
    // Nobody relays at present; the orders wait.
    orders::place(shop.pool(), &some_orders(400, 400)).await.unwrap();
    let after = on_kafka(env!("CARGO_BIN_EXE_monolith-without-billing"), &shop, &kafka);
    let service = on_kafka(env!("CARGO_BIN_EXE_billing-service"), &billing, &kafka);
    orders::place(shop.pool(), &some_orders(800, 400)).await.unwrap();
    until_billed(billing.pool(), 800, Duration::from_secs(90)).await;

    assert_sound(shop.pool(), 400).await;
    assert_sound(billing.pool(), 800).await;
    after.stop();
    service.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_order_is_billed_once_and_in_order_whatever_is_killed() {
    const ORDERS: i64 = 10_000;
    let (shop, billing) = (
        TestDatabase::create().await.unwrap(),
        TestDatabase::create().await.unwrap(),
    );
    let kafka = DevKafka::start_own().await.unwrap();
    create_topics(&kafka).await;
    let mut relay = on_kafka(env!("CARGO_BIN_EXE_monolith-without-billing"), &shop, &kafka);
    let mut service = on_kafka(env!("CARGO_BIN_EXE_billing-service"), &billing, &kafka);
    until_ready(shop.pool()).await;

    let pool = shop.pool().clone();
    let placing = tokio::spawn(async move {
        for first in (0..ORDERS).step_by(50) {
            orders::place(&pool, &some_orders(first, 50)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    for round in 0..6 {
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1000..4000))).await;
        match round {
            1 => restart(&kafka, KafkaStop::Kill).await,
            4 => restart(&kafka, KafkaStop::Orderly).await,
            0 | 3 => relay.kill_and_start_again(),
            _ => service.kill_and_start_again(),
        }
    }
    placing.await.unwrap();
    until_billed(billing.pool(), ORDERS, Duration::from_secs(240)).await;
    // Redeliveries may still be on their way; they must change nothing.
    relay.stop();
    service.stop();

    assert_sound(billing.pool(), ORDERS).await;
    assert_eq!(dead_letters(&kafka), 0);
    let unfinished = "SELECT count(*) FROM outbox.outbox WHERE status <> 'completed'";
    assert_eq!(count(shop.pool(), unfinished).await, 0);
}

async fn restart(kafka: &DevKafka, how: KafkaStop) {
    kafka.stop(how).await.unwrap();
    kafka.resume().await.unwrap();
}

#[test]
fn the_module_that_moves_is_compiled_into_both_programs_unchanged() {
    let module = include_str!("../src/billing.rs");
    let [before, after, without] = [
        include_str!("../src/bin/monolith.rs"),
        include_str!("../src/bin/billing-service.rs"),
        include_str!("../src/bin/monolith-without-billing.rs"),
    ];
    let registers = "let dispatcher = billing::register(Registry::new(), &inbox).build()?;";

    // One library without features holds the module in its own file, so there is one compilation of it; neither program
    // has a copy of its own.
    let library = include_str!("../src/lib.rs");
    assert!(library.contains("\n\npub mod billing;\n") && !library.contains("#["));
    assert!(!include_str!("../Cargo.toml").contains("[features]"));
    for program in [before, after] {
        assert!(program.contains(registers) && program.contains("use module_extraction::{"));
        assert!(!program.contains("#[path") && !program.contains("mod billing"));
    }
    assert!(!without.contains("billing::"));
    for word in ["kafka", "Kafka", "cfg", "PgSource"] {
        assert!(!module.contains(word), "the module knows of {word}");
    }
}
