//! When which process was not as it should be.

use super::record::{Record, What};

/// A process that is well again may still finish what it had begun before: a delivery checked its claim, then was paused.
const AFTER_US: i64 = 2_000_000;

/// All faults of a run.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

#[derive(Debug)]
struct Fault {
    victim: String,
    from: i64,
    to: i64,
}

impl Faults {
    pub(super) fn collect(records: &[Record]) -> Self {
        let mut faults: Vec<Fault> = Vec::new();
        for record in records {
            match &record.what {
                What::Faulted { victim, .. } => faults.push(Fault {
                    victim: victim.clone(),
                    from: record.at_us,
                    to: i64::MAX,
                }),
                What::Healed { victim } => {
                    for fault in faults
                        .iter_mut()
                        .filter(|fault| fault.victim == *victim && fault.to == i64::MAX)
                    {
                        fault.to = record.at_us + AFTER_US;
                    }
                }
                _ => {}
            }
        }
        Self(faults)
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether something was wrong with the process, or with the server, at some time in between.
    pub(super) fn excuse(&self, process: &str, from: i64, to: i64) -> bool {
        self.of(process).any(|fault| fault.from <= to && fault.to >= from)
    }

    /// Whether anything was wrong with anybody at some time in between.
    pub(super) fn any(&self, from: i64, to: i64) -> bool {
        self.0.iter().any(|fault| fault.from <= to && fault.to >= from)
    }

    fn of(&self, process: &str) -> impl Iterator<Item = &Fault> {
        self.0
            .iter()
            .filter(move |fault| fault.victim == process || fault.victim == "*")
    }
}
