//! Planted secrets and payloads come out nowhere: in no log line at the finest level, no span, no metric, no `Debug`.
#![expect(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::{
    fmt::Debug,
    io::{self, Write},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use outbox::{
    Context, Event, EventId, EventType, HandlerError, Health, Names, NewEvent, Payload, PgInbox, PgPublisher,
    PgSource, PrometheusText, Registry, Relay, RetryPolicy, TraceLinks, admin::PgAdmin, migrate, stamp,
};
use outbox_dev::TestDatabase;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgPool, postgres::PgConnectOptions};
use tracing_subscriber::fmt::format::FmtSpan;

/// The gate looks for these in the output of all tests, too.
const PASSWORD: &str = "planted-secret-0815";
const MARKER: &str = "personal-4711";

/// Everything that was said.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Said {
    fn listen() -> Self {
        let said = Self::default();
        let writer = said.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .init();
        said
    }

    /// The lines that tell it.
    fn lines(&self, text: &str) -> Vec<String> {
        let said = String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned();
        let lines = said.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }

    fn contains(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()).contains(text)
    }
}

macro_rules! events {
    ($($name:ident),*) => {$(
        #[derive(Debug, Clone, Serialize, Deserialize, Event)]
        struct $name {
            customer: String,
        }
    )*};
}
events!(Good, Rejected, Panicking, Unhandled);

/// What is published under this name is something else.
#[derive(Serialize, Deserialize, Event)]
struct Undecodable {
    customer: u64,
}

fn handlers(inbox: &PgInbox) -> Registry {
    let once = inbox.transactional(async |_: Good, _: &mut sqlx::PgConnection, _: Context| Ok(()));
    Registry::new()
        .on("once", once)
        .on("shows its context", async |_: Good, ctx: Context| {
            tracing::info!(?ctx, envelope = ?ctx.envelope(), "handling");
            match ctx.attempt() {
                1 => Err(HandlerError::retry("not yet")),
                _ => Ok(()),
            }
        })
        .on("rejects", async |_: Rejected, _: Context| {
            Err(HandlerError::reject("never"))
        })
        .on("panics", async |_: Panicking, _: Context| panic!("boom"))
        .on("decodes", async |_: Undecodable, _: Context| Ok(()))
}

fn show(value: &impl Debug) {
    tracing::info!("{value:?} {value:#?}");
}

/// A role with the planted password.
async fn options(database: &TestDatabase) -> PgConnectOptions {
    let role = format!("{}_planted", database.name());
    let sql = format!("CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{PASSWORD}'");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(database.pool())
        .await
        .unwrap();
    database.connect_options().username(&role).password(PASSWORD)
}

async fn publish(publisher: &PgPublisher, pool: &PgPool) -> Vec<EventId> {
    let customer = || MARKER.to_owned();
    let mut connection = pool.acquire().await.unwrap();
    let undecodable = NewEvent::raw(
        EventType::new("Undecodable").unwrap(),
        Payload::from_json(format!(r#"{{"customer":"{MARKER}"}}"#)),
    );
    let events = [
        NewEvent::of(&Good { customer: customer() }).unwrap(),
        NewEvent::of(&Rejected { customer: customer() }).unwrap(),
        NewEvent::of(&Panicking { customer: customer() }).unwrap(),
        NewEvent::of(&Unhandled { customer: customer() }).unwrap(),
        undecodable,
    ];
    let ids = events.iter().map(|event| event.id).collect();
    for event in events {
        let event = event.with_header("customer", MARKER);
        show(&event);
        publisher.publish(&mut connection, event).await.unwrap();
    }
    ids
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn settled(pool: &PgPool) -> bool {
    let pending = "SELECT count(*) FROM outbox.outbox WHERE status = 'pending'";
    let pending: i64 = sqlx::query_scalar(pending).fetch_one(pool).await.unwrap();
    pending == 0
}

/// Cuts the relay's connections, and waits for it to notice and to recover.
async fn cut(pool: &PgPool, health: &Health, said: &Said) {
    until("no poll failed", async || {
        let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE application_name = 'outbox-relay' AND datname = current_database()";
        sqlx::query(cut).execute(pool).await.unwrap();
        publish(&PgPublisher::new(&Names::default()), pool).await;
        said.contains("outbox_poll_failed")
    })
    .await;
    until("no recovery", async || {
        health.is_healthy(3) && settled(pool).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_and_payloads_come_out_nowhere() {
    let database = TestDatabase::create().await.unwrap();
    let options = options(&database).await;
    let said = Said::listen();
    let pool = PgPool::connect_with(options.clone()).await.unwrap();
    let names = Names::default();
    migrate(&mut pool.acquire().await.unwrap(), &names).await.unwrap();

    let builder = PgSource::builder(options.clone());
    show(&builder);
    let source = builder.start().await.unwrap();
    show(&source);
    let inbox = PgInbox::new(pool.clone(), &names);
    show(&inbox);
    let dispatcher = handlers(&inbox).state(pool.clone()).build().unwrap();
    show(&dispatcher);
    let text = PrometheusText::new();
    let relay = Relay::builder(Arc::new(source), Arc::new(dispatcher))
        .retry(RetryPolicy::fixed(
            2.try_into().unwrap(),
            Duration::from_millis(10),
        ))
        .poll_timeout(Duration::from_millis(100))
        .metrics(text.metrics())
        .span_links(TraceLinks::default())
        .build()
        .unwrap();
    show(&relay);
    let health = relay.health();
    let relay = relay.spawn();
    show(&relay);
    let publisher = PgPublisher::new(&names).stamped(stamp);
    show(&publisher);
    let ids = publish(&publisher, &pool).await;
    until("not all settled", async || settled(&pool).await).await;
    cut(&pool, &health, &said).await;
    let admin = PgAdmin::new(pool.clone(), &names);
    show(&admin);
    for id in ids {
        show(&admin.show(id).await.unwrap());
    }
    show(&admin.status().await.unwrap());
    tracing::info!("{}", text.render());
    show(&relay.shutdown().await.unwrap());

    // Those who cannot get in.
    for wrong in [
        options.clone().username("nobody-of-that-name"),
        options.clone().port(1),
        options.clone().database("none"),
    ] {
        let error = PgSource::builder(wrong).start().await.unwrap_err();
        tracing::info!(%error, ?error, "refused");
    }

    for line in [
        "outbox_relay_starting",
        "outbox_event_failed",
        "dispatcher_events_total",
        "DEBUG",
        "sqlx",
    ] {
        assert!(said.contains(line), "{line} was not even said");
    }
    for planted in [PASSWORD, MARKER] {
        let told = said.lines(planted);
        assert!(
            told.is_empty(),
            "{} lines tell what was planted, the first in {}",
            told.len(),
            told[0].replace(planted, "…")
        );
    }
    // The look would have found them.
    tracing::trace!(password = PASSWORD, payload = MARKER);
    assert!(said.contains(PASSWORD) && said.contains(MARKER));

    pool.close().await;
    let sql = format!(
        "DROP OWNED BY {role}; DROP ROLE {role}",
        role = options.get_username()
    );
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(database.pool())
        .await
        .unwrap();
}
