//! A database with an outbox, an application on it, and an operator with the real command.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use outbox::admin::PgAdmin;
use outbox::{
    Backlog, Context, HandlerError, Names, PgPublisher, PgSource, PrometheusText, Registry, Relay,
    RelayHandle, RetryPolicy,
};
use outbox_dev::TestDatabase;
use sqlx::{AssertSqlSafe, Row};
use tokio::process::Command;

/// Goes into every payload, and may come out nowhere.
pub(crate) const MARKER: &str = "personal-4711";
/// The password of every role, likewise.
pub(crate) const PASSWORD: &str = "planted-secret-0815";

#[derive(serde::Serialize, serde::Deserialize, outbox::Event)]
pub(crate) struct OrderPlaced {
    pub(crate) customer: String,
}

#[derive(serde::Serialize, serde::Deserialize, outbox::Event)]
pub(crate) struct OrderShipped {
    pub(crate) customer: String,
}

pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) publisher: PgPublisher,
    /// What the application's relays measure.
    text: PrometheusText,
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }

    /// The verdict, evidence and remedy of a check of `doctor --json`.
    pub(crate) fn check(&self, name: &str) -> (String, String) {
        let checks: serde_json::Value = serde_json::from_str(&self.out).expect(&self.err);
        let checks = checks.as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("no check {name} in {}", self.out));
        let text = format!("{} → {}", check["evidence"], check["remedy"]);
        (check["verdict"].as_str().unwrap().to_owned(), text)
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::create().await.expect("a database for the test");
        let world = Self {
            database,
            publisher: PgPublisher::new(&Names::default()),
            text: PrometheusText::new(),
        };
        world.outbox(&["migrate"]).await.ok();
        world
    }

    /// A role of this test alone.
    pub(crate) fn role(&self, part: &str) -> String {
        format!("{}_{part}", self.database.name())
    }

    pub(crate) async fn create_role(&self, part: &str) {
        let role = self.role(part);
        self.run(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'"))
            .await;
    }

    pub(crate) async fn drop_role(&self, part: &str) {
        let role = self.role(part);
        self.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    }

    /// The URL of a role, or of the database's owner.
    pub(crate) fn url(&self, part: Option<&str>) -> String {
        let Some(part) = part else {
            return self.database.url().to_owned();
        };
        let (_, rest) = self.database.url().split_once("://").unwrap();
        let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        format!("postgres://{}:{PASSWORD}@{host}", self.role(part))
    }

    pub(crate) fn command(&self, args: &[&str], part: Option<&str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        command
            .args(args)
            .env_remove("OUTBOX_SCHEMA")
            .env("DATABASE_URL", self.url(None))
            .env("JOBS_DB_URL", self.url(part))
            .env("OUTBOX_ACTOR", "ada")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn outbox(&self, args: &[&str]) -> Said {
        self.outbox_as(None, args).await
    }

    /// Runs the command as that role.
    pub(crate) async fn outbox_as(&self, part: Option<&str>, args: &[&str]) -> Said {
        self.outbox_by(&self.url(part), args).await
    }

    /// Runs the command on the database of that URL. Whatever it says, it tells no secrets.
    pub(crate) async fn outbox_by(&self, url: &str, args: &[&str]) -> Said {
        let mut command = self.command(args, None);
        let output = command.env("JOBS_DB_URL", url).output().await.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let said = Said {
            code: output.status.code().unwrap(),
            out: text(output.stdout),
            err: text(output.stderr),
        };
        for secret in [PASSWORD, MARKER] {
            assert!(
                !said.out.contains(secret) && !said.err.contains(secret),
                "{args:?} told a secret"
            );
        }
        said
    }

    pub(crate) async fn publish(&self, events: u32) {
        let mut connection = self.database.pool().acquire().await.unwrap();
        let events = (0..events).map(|_| OrderPlaced {
            customer: MARKER.to_owned(),
        });
        let events: Vec<_> = events.collect();
        self.publisher
            .publish_all(&mut connection, &events)
            .await
            .unwrap();
    }

    /// The application, connecting as that role.
    pub(crate) async fn start(
        &self,
        registry: Registry,
        part: Option<&str>,
        concurrency: u32,
    ) -> RelayHandle {
        let source = PgSource::builder(self.url(part).parse().unwrap())
            .start()
            .await
            .unwrap();
        Relay::builder(Arc::new(source), Arc::new(registry.build().unwrap()))
            .concurrency(concurrency.try_into().unwrap())
            .metrics(self.text.metrics())
            .retry(RetryPolicy::fixed(
                2.try_into().unwrap(),
                Duration::from_millis(10),
            ))
            .build()
            .unwrap()
            .spawn()
    }

    /// A figure of the metrics with that label, as a dashboard shows it now.
    pub(crate) async fn figure(&self, metric: &str, label: &str) -> f64 {
        let admin = PgAdmin::new(self.database.pool().clone(), &Names::default());
        let now = admin.gauges(10_000).await.unwrap();
        self.text.metrics().backlog(Backlog {
            pending: now.pending,
            oldest_seconds: now.oldest_seconds,
            failed: now.failed,
        });
        let page = self.text.render();
        let lines = page
            .lines()
            .filter(|line| line.starts_with(metric) && line.contains(label));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    }

    pub(crate) async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(self.database.pool())
            .await
            .expect(sql);
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query(AssertSqlSafe(sql.to_owned()))
            .fetch_one(self.database.pool())
            .await
            .unwrap()
            .get(0)
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        sqlx::query(AssertSqlSafe(sql.to_owned()))
            .fetch_one(self.database.pool())
            .await
            .unwrap()
            .get(0)
    }

    pub(crate) async fn count(&self, status: &str) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM outbox.outbox WHERE status = '{status}'"
        ))
        .await
    }

    pub(crate) async fn until(&self, status: &str, events: i64) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while self.count(status).await != events {
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited for {events} {status} events"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub(crate) async fn ship(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}
