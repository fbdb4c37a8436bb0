//! What the outbox does in a second, and what it costs: each number beside its floor, in the same run, in turns.
//!
//! Run with `make bench`, or some of it with `cargo bench --bench outbox -- drain publish`. `OUTBOX_BENCH_EVENTS` (50000),
//! `OUTBOX_BENCH_ROUNDS` (5) and, of `snapshot`, `OUTBOX_BENCH_BATCH` (500, the most events of a claim) set the size. Each starts a
//! Postgres of its own, with fsync; results go to the terminal and, as JSON and as a chart, to `target/bench/`. Every run checks that nothing was lost, doubled or overtaken.
//!
//! Absolute figures belong to one machine at one hour: compare within a run.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a benchmark fails by panicking"
)]

mod claims;
mod drain;
mod floor;
mod harness;
mod inbox;
mod latency;
mod many;
mod memory;
mod ordered;
mod publish;
mod snapshot;

use harness::Size;

const ALL: [&str; 9] = [
    "drain", "publish", "latency", "snapshot", "ordered", "inbox", "claims", "many", "memory",
];

#[tokio::main]
async fn main() {
    let size = Size::from_env();
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    for name in &asked {
        assert!(ALL.contains(&name.as_str()), "{name} is none of {ALL:?}");
    }
    for name in ALL {
        if !asked.is_empty() && !asked.iter().any(|asked| asked == name) {
            continue;
        }
        println!("== {name}");
        match name {
            "drain" => drain::run(size).await,
            "publish" => publish::run(size).await,
            "latency" => latency::run(size).await,
            "snapshot" => snapshot::run(size).await,
            "ordered" => ordered::run(size).await,
            "inbox" => inbox::run(size).await,
            "claims" => claims::run(size).await,
            "many" => many::run(size).await,
            _ => memory::run(size).await,
        }
    }
}
