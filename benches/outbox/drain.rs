//! How fast a backlog is drained, by defaults and tuned, beside plain SQL.

use outbox::PgSource;

use crate::floor;
use crate::harness::{Lab, Report, Size, Target, drain};

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    let events = size.events;
    let mut report = Report::new("drain");
    report.fact("events", events);
    for _ in 0..size.rounds {
        for (label, tuned) in [("default", false), ("tuned", true)] {
            lab.fill(events, 0).await;
            let (rate, cpu) = floor::drain(&lab, events, tuned).await;
            report.add(
                &format!("floor, {label}"),
                &[("events/s", rate), ("server µs", cpu)],
            );
            let source = PgSource::builder(lab.database.connect_options());
            let source = if tuned {
                source.settle_asynchronously()
            } else {
                source
            };
            let (rate, cpu) = drain(&lab, [source], events).await;
            report.add(
                &format!("relay, {label}"),
                &[("events/s", rate), ("server µs", cpu)],
            );
        }
    }
    report.compare(
        "events/s",
        "relay, default",
        "floor, default",
        Target::AtLeast(0.8),
    );
    report.compare("events/s", "relay, tuned", "floor, tuned", Target::AtLeast(0.9));
    report.compare(
        "server µs",
        "relay, default",
        "floor, default",
        Target::AtMost(1.15),
    );
    report.compare("server µs", "relay, tuned", "floor, tuned", Target::AtMost(1.15));
    report.finish();
}
