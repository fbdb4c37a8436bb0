//! A report that holds a snapshot while events flow: the rate to the end, and what a claim takes then.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use outbox::{PgSource, RelaySettings};
use sqlx::Executor;

use crate::claims::claim_ms;
use crate::harness::{Lab, Report, Running, Size, Target, curves};

/// The backlog is drained in so many parts, and the rate of each is told.
const PARTS: usize = 10;

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    let events = size.events * 4;
    let mut report = Report::new("snapshot");
    report.fact("events", events);
    report.fact("events of a claim", size.batch.get());
    let mut lines = Vec::new();
    for _ in 0..size.rounds.min(3) {
        for (label, held) in [("no old snapshot", false), ("old snapshot held", true)] {
            let found = flow(&lab, events, size.batch, held).await;
            report.add(
                label,
                &[
                    ("events/s", found.rate),
                    ("last tenth, events/s", found.curve[PARTS - 1]),
                    ("claim ms", found.claim_ms),
                ],
            );
            lines.retain(|(known, _)| *known != label);
            lines.push((label, found.curve));
        }
    }
    let title = format!("Events per second while {events} events are drained, by tenths");
    report.picture(curves(&title, &lines));
    for (label, curve) in lines {
        report.fact(label, curve);
    }
    let (held, free) = ("old snapshot held", "no old snapshot");
    report.compare("events/s", held, free, Target::AtLeast(0.9));
    report.compare("last tenth, events/s", held, free, Target::AtLeast(0.9));
    report.compare("claim ms", held, free, Target::AtMost(2.0));
    report.finish();
}

struct Found {
    rate: f64,
    curve: Vec<f64>,
    claim_ms: f64,
}

async fn flow(lab: &Lab, events: usize, batch: NonZeroU32, held: bool) -> Found {
    lab.fill(events, 0).await;
    let mut report = lab.connect().await;
    if held {
        report
            .execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.outbox_block")
            .await
            .unwrap();
    }
    let mut settings = RelaySettings::default();
    settings.batch_size = batch;
    let running = Running::start_with([PgSource::builder(lab.database.connect_options())], settings).await;
    let (began, mut last, mut first, mut curve) = (Instant::now(), Instant::now(), 0, Vec::new());
    for part in 1..=PARTS {
        running.seen.wait_for(events * part / PARTS).await;
        let seen = running.seen.count();
        curve.push((seen - first) as f64 / last.elapsed().as_secs_f64());
        if part == PARTS / 2 {
            // As autovacuum would; it can remove nothing that the snapshot may still see.
            lab.execute("VACUUM outbox.outbox").await;
        }
        // What was delivered beside the vacuum belongs to no tenth.
        (last, first) = (Instant::now(), running.seen.count());
    }
    let rate = events as f64 / began.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let seen = running.stop().await;
    seen.check(lab, true).await;
    let more = "INSERT INTO outbox.outbox (id, event_type, payload)
        SELECT gen_random_uuid(), 'OrderPlaced', '{}' FROM generate_series(1, 200)";
    lab.execute(more).await;
    let claim_ms = claim_ms(&mut lab.connect().await).await;
    Found {
        rate,
        curve,
        claim_ms,
    }
}
