//! A database with an outbox, and meters that can be read.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "each test binary uses its part, and a test fails by panicking"
)]

pub(crate) mod spans;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use outbox_core::Event;
use outbox_dev::TestDatabase;
use outbox_pg::{Names, PgPublisher, migrate};
use sqlx::{AssertSqlSafe, Row};

pub(crate) struct World {
    pub(crate) database: TestDatabase,
    pub(crate) publisher: PgPublisher,
}

impl World {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::create().await.expect("a database for the test");
        let mut connection = database.pool().acquire().await.unwrap();
        migrate(&mut connection, &Names::default())
            .await
            .expect("migrations");
        drop(connection);
        Self {
            database,
            publisher: PgPublisher::new(&Names::default()),
        }
    }

    pub(crate) async fn publish<E: Event>(&self, event: &E) {
        let mut connection = self.database.pool().acquire().await.unwrap();
        self.publisher.publish(&mut connection, event).await.unwrap();
    }

    pub(crate) async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(self.database.pool())
            .await
            .expect(sql);
    }

    pub(crate) async fn until(&self, condition: &str, rows: i64) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let sql = format!("SELECT count(*) FROM outbox.outbox WHERE {condition}");
            let row = sqlx::query(AssertSqlSafe(sql))
                .fetch_one(self.database.pool())
                .await
                .unwrap();
            let found: i64 = row.get(0);
            if found == rows {
                return;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{condition}: {found}, waited for {rows}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A provider whose figures can be read.
pub(crate) struct Meters {
    exporter: InMemoryMetricExporter,
    provider: SdkMeterProvider,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        Self { exporter, provider }
    }

    pub(crate) fn meter(&self) -> Meter {
        self.provider.meter("outbox")
    }

    pub(crate) fn collect(&self) -> Collected {
        self.provider.force_flush().unwrap();
        let all = self.exporter.get_finished_metrics().unwrap();
        let mut points = Vec::new();
        for scope in all.last().unwrap().scope_metrics() {
            for metric in scope.metrics() {
                let name = (metric.name(), metric.unit());
                match metric.data() {
                    AggregatedMetrics::F64(data) => read(&mut points, name, data, |value| value),
                    AggregatedMetrics::U64(data) => read(&mut points, name, data, |value| value as f64),
                    AggregatedMetrics::I64(data) => read(&mut points, name, data, |value| value as f64),
                }
            }
        }
        Collected(points)
    }
}

/// One figure.
#[derive(Debug)]
pub(crate) struct Point {
    name: String,
    unit: String,
    kind: &'static str,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
    count: f64,
}

impl Point {
    fn fits(&self, labels: &[(&str, &str)]) -> bool {
        let has = |(key, value): &(&str, &str)| self.labels.get(*key).map(String::as_str) == Some(*value);
        labels.iter().all(has)
    }
}

#[derive(Debug)]
pub(crate) struct Collected(Vec<Point>);

fn read<T: Copy>(
    points: &mut Vec<Point>,
    (name, unit): (&str, &str),
    data: &MetricData<T>,
    number: impl Fn(T) -> f64,
) {
    let mut add = |kind, labels: BTreeMap<String, String>, value, count| {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        points.push(Point {
            name,
            unit,
            kind,
            labels,
            value,
            count,
        });
    };
    let label = |pair: &opentelemetry::KeyValue| (pair.key.to_string(), pair.value.as_str().into_owned());
    match data {
        MetricData::Gauge(gauge) => {
            for point in gauge.data_points() {
                add(
                    "gauge",
                    point.attributes().map(label).collect(),
                    number(point.value()),
                    1.0,
                );
            }
        }
        MetricData::Sum(sum) => {
            for point in sum.data_points() {
                add(
                    "counter",
                    point.attributes().map(label).collect(),
                    number(point.value()),
                    1.0,
                );
            }
        }
        MetricData::Histogram(histogram) => {
            for point in histogram.data_points() {
                let labels = point.attributes().map(label).collect();
                add("histogram", labels, number(point.sum()), point.count() as f64);
            }
        }
        MetricData::ExponentialHistogram(_) => panic!("{name} is an exponential histogram"),
    }
}

impl Collected {
    pub(crate) fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Point> {
        self.0.iter().filter(move |point| point.name == name)
    }

    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fitting = self.of(name).filter(|point| point.fits(labels));
        fitting.map(|point| point.value).sum()
    }

    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.value(name, &[])
    }

    pub(crate) fn count(&self, name: &str) -> f64 {
        self.count_of(name, &[])
    }

    pub(crate) fn count_of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let fitting = self.of(name).filter(|point| point.fits(labels));
        fitting.map(|point| point.count).sum()
    }

    /// All values of a label, in whatever metric.
    pub(crate) fn labels(&self, key: &str) -> BTreeSet<&str> {
        let values = self.0.iter().filter_map(|point| point.labels.get(key));
        values.map(String::as_str).collect()
    }

    pub(crate) fn shapes(&self) -> BTreeSet<(String, String, String, BTreeSet<String>)> {
        let shape = |point: &Point| {
            let labels = point.labels.keys().cloned().collect();
            (
                point.name.clone(),
                point.kind.to_owned(),
                point.unit.clone(),
                labels,
            )
        };
        self.0.iter().map(shape).collect()
    }
}
