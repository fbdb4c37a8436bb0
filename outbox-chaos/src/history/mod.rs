//! What happened in a run, as its processes wrote it down, and what must hold of it.
//!
//! Every process appends to a file of its own, one line and one write per record, so a killed process loses nothing that
//! it has recorded. Afterwards all files are read together and judged offline: nobody has to watch the run.

mod checker;
mod faults;
mod flow;
mod order;
mod record;
mod story;

pub use checker::{Rule, Summary, Verdict, Violation, check};
pub use record::{Ending, History, HistoryError, Policy, Record, What, now_us, read};
