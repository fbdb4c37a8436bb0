//! What order per key costs: 10,000 keys beside none, by one relay and by four; each key in its turn, or some much more
//! often than others, so that the next event of a key is often found while one is in flight.

use outbox::{NewEvent, PgSource};

use crate::harness::{Lab, Report, Size, Target, drain, event};

const KEYS: usize = 10_000;

/// Makes the n-th event.
type Nth = fn(usize) -> NewEvent;

pub(crate) async fn run(size: Size) {
    let lab = Lab::new().await;
    let mut report = Report::new("ordered");
    report.fact("events", size.events);
    report.fact("keys", KEYS);
    let kinds: [(&str, Nth); 3] = [
        ("unordered", |n| event(n, 0)),
        ("ordered", |n| event(n, KEYS)),
        ("skewed", skewed),
    ];
    for _ in 0..size.rounds {
        for relays in [1, 4] {
            for (label, one) in kinds {
                lab.fill_with(size.events, one).await;
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
        let unordered = format!("unordered, {relays} relays");
        for (label, target) in [("ordered", Target::AtLeast(0.7)), ("skewed", Target::None)] {
            let label = format!("{label}, {relays} relays");
            report.compare("events/s", &label, &unordered, target);
            report.compare("server µs", &label, &unordered, Target::None);
        }
    }
    report.finish();
}

/// An event whose key is the more frequent the lower its number: a tenth of the keys have a third of the events.
fn skewed(n: usize) -> NewEvent {
    // Knuth's multiplicative hash: the same for each run, and as good as any.
    let uniform = f64::from((n as u32).wrapping_mul(2_654_435_761)) / f64::from(u32::MAX);
    event((uniform * uniform * KEYS as f64) as usize, KEYS)
}
