//! What order per key costs: 10,000 keys beside none, by one relay and by four.

use outbox::PgSource;

use crate::harness::{Lab, Report, Size, Target, drain};

const KEYS: usize = 10_000;

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    let mut report = Report::new("ordered");
    report.fact("events", size.events);
    report.fact("keys", KEYS);
    for _ in 0..size.rounds {
        for relays in [1, 4] {
            for (label, keys) in [("unordered", 0), ("ordered", KEYS)] {
                lab.fill(size.events, keys).await;
                let sources = (0..relays).map(|_| PgSource::builder(lab.database.connect_options()));
                let (rate, cpu) = drain(&lab, sources, size.events).await;
                report.add(
                    &format!("{label}, {relays} relays"),
                    &[("events/s", rate), ("server µs", cpu)],
                );
            }
        }
    }
    for relays in [1, 4] {
        let (ordered, unordered) = (
            format!("ordered, {relays} relays"),
            format!("unordered, {relays} relays"),
        );
        report.compare("events/s", &ordered, &unordered, Target::AtLeast(0.7));
        report.compare("server µs", &ordered, &unordered, Target::None);
    }
    report.finish();
}
