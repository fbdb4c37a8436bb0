//! What the benchmarks share.

use std::num::NonZeroU32;

mod curve;
mod lab;
mod relay;
mod report;

pub(crate) use curve::curves;
pub(crate) use lab::{Lab, event, payload};
pub(crate) use relay::{Running, drain};
pub(crate) use report::{Report, Target};

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) events: usize,
    pub(crate) rounds: usize,
    /// The most events of a claim, where that is varied.
    pub(crate) batch: NonZeroU32,
}

impl Size {
    pub(crate) fn from_env() -> Self {
        let number = |name: &str, default: usize| {
            std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
        };
        let batch = number("OUTBOX_BENCH_BATCH", 500);
        Self {
            batch: u32::try_from(batch)
                .ok()
                .and_then(NonZeroU32::new)
                .expect("a batch of at least 1"),
            events: number("OUTBOX_BENCH_EVENTS", 50_000),
            rounds: number("OUTBOX_BENCH_ROUNDS", 5),
        }
    }
}

/// The middle of some values; of an even number, the upper one.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let place = ((values.len() as f64 * share) as usize).min(last);
    values.get(place).copied().unwrap_or(f64::NAN)
}
