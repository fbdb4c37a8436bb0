//! Sixteen relays on one table, mostly idle: how long any waits for the claims' lock, and what they cost.

use std::time::{Duration, Instant};

use outbox::{Names, PgPublisher, PgSource};
use sqlx::Row;

use crate::harness::{Lab, Report, Running, Size, Target, event};

const RELAYS: usize = 16;
const TIME: Duration = Duration::from_secs(8);

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    let mut report = Report::new("many");
    report.fact("relays", RELAYS);
    for _ in 0..size.rounds.min(3) {
        for (label, per_second) in [("no events", 0), ("50 events/s", 50), ("200 events/s", 200)] {
            lab.fill(0, 0).await;
            let sources = (0..RELAYS).map(|_| PgSource::builder(lab.database.connect_options()));
            let running = Running::start(sources).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let cpu = lab.cpu();
            let waits = watch(&lab, per_second).await;
            let cpu = (lab.cpu() - cpu) / TIME.as_secs_f64() * 1e3;
            let events = per_second * usize::try_from(TIME.as_secs()).unwrap();
            running.seen.wait_for(events).await;
            running.stop().await.check(&lab, true).await;
            report.add(label, &[("longest wait ms", waits), ("server ms/s", cpu)]);
        }
    }
    for load in ["50 events/s", "200 events/s"] {
        let longest = report.median(load, "longest wait ms");
        let name = format!("longest wait for the claims' lock, ms, at {load}");
        report.ratio(name, longest, Target::AtMost(50.0));
    }
    report.finish();
}

/// Publishes, and looks who waits for an advisory lock; returns the longest wait that was seen, in ms.
async fn watch(lab: &Lab, per_second: usize) -> f64 {
    let sql = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 * 1000
        FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    let (mut looking, mut publishing) = (lab.connect().await, lab.connect().await);
    let publisher = PgPublisher::new(&Names::default());
    let (began, mut longest, mut published) = (Instant::now(), 0.0_f64, 0);
    while began.elapsed() < TIME {
        // A server that cannot keep up must not keep this from ending.
        while began.elapsed() < TIME
            && published < (began.elapsed().as_secs_f64() * per_second as f64) as usize
        {
            publisher
                .publish(&mut publishing, event(published, 0))
                .await
                .unwrap();
            published += 1;
        }
        let row = sqlx::query(sql).fetch_one(&mut looking).await.unwrap();
        longest = longest.max(row.get(0));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let events = per_second * usize::try_from(TIME.as_secs()).unwrap();
    while published < events {
        publisher
            .publish(&mut publishing, event(published, 0))
            .await
            .unwrap();
        published += 1;
    }
    longest
}
