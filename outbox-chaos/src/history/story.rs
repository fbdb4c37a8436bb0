//! The records of each event, put together.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::record::{Ending, Policy, Record, What};

/// What became of the transaction of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Committed,
    RolledBack,
    /// The answer to the commit was lost, or the publisher was.
    Unknown,
}

/// One delivery.
#[derive(Debug, Clone)]
pub(super) struct Delivery {
    pub(super) process: String,
    pub(super) start: i64,
    pub(super) end: Option<(i64, Ending)>,
    pub(super) payload: String,
}

impl Delivery {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.end, Some((_, Ending::Done)))
    }
}

/// What the table says.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) status: String,
    pub(super) retry_count: i32,
    pub(super) seq: i64,
}

/// Everything known of one event.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub(super) payload: Option<String>,
    pub(super) key: Option<String>,
    pub(super) ends: String,
    pub(super) policy: Policy,
    pub(super) delayed: bool,
    pub(super) fate: Option<Fate>,
    pub(super) committed_at: Option<i64>,
    /// By start.
    pub(super) deliveries: Vec<Delivery>,
    /// When the store confirmed that it is completed.
    pub(super) completed: Vec<i64>,
    /// When it was made pending again.
    pub(super) redriven: Vec<i64>,
    /// When it was given up for good.
    pub(super) discarded: Vec<i64>,
    pub(super) row: Option<Row>,
}

impl Story {
    pub(super) fn fate(&self) -> Fate {
        self.fate.unwrap_or(Fate::Unknown)
    }

    /// Whether its transaction committed, as far as anybody can know.
    pub(super) fn is_committed(&self) -> bool {
        match self.fate() {
            Fate::Committed => true,
            Fate::RolledBack => false,
            Fate::Unknown => self.row.is_some(),
        }
    }
}

/// Sorts records by event. They are in the order of time.
pub(super) fn collect(records: &[Record]) -> BTreeMap<Uuid, Story> {
    let mut stories: BTreeMap<Uuid, Story> = BTreeMap::new();
    for record in records {
        let at = record.at_us;
        match &record.what {
            What::Intended {
                event,
                payload,
                key,
                ends,
                policy,
                delayed,
            } => {
                let story = stories.entry(*event).or_default();
                (story.policy, story.delayed) = (*policy, *delayed);
                story.payload = Some(payload.clone());
                story.key.clone_from(key);
                story.ends.clone_from(ends);
            }
            What::Committed { event } => {
                let story = stories.entry(*event).or_default();
                story.fate = Some(Fate::Committed);
                story.committed_at = Some(at);
            }
            What::Discarded { event } => stories.entry(*event).or_default().discarded.push(at),
            What::RolledBack { event } => stories.entry(*event).or_default().fate = Some(Fate::RolledBack),
            What::Unknown { event } => stories.entry(*event).or_default().fate = Some(Fate::Unknown),
            What::Started { event, payload, .. } => {
                stories.entry(*event).or_default().deliveries.push(Delivery {
                    process: record.process.clone(),
                    start: at,
                    end: None,
                    payload: payload.clone(),
                });
            }
            What::Ended { event, how } => {
                let story = stories.entry(*event).or_default();
                let open = story
                    .deliveries
                    .iter_mut()
                    .find(|delivery| delivery.process == record.process && delivery.end.is_none());
                if let Some(delivery) = open {
                    delivery.end = Some((at, *how));
                }
            }
            What::Settled { event, outcome } if outcome == "completed" => {
                stories.entry(*event).or_default().completed.push(at);
            }
            What::Redriven { event, ends } => {
                let story = stories.entry(*event).or_default();
                story.redriven.push(at);
                story.ends.clone_from(ends);
            }
            What::Row {
                event,
                status,
                retry_count,
                seq,
                ..
            } => {
                stories.entry(*event).or_default().row = Some(Row {
                    status: status.clone(),
                    retry_count: *retry_count,
                    seq: *seq,
                });
            }
            What::Settled { .. } | What::Faulted { .. } | What::Healed { .. } | What::Resumed { .. } => {}
        }
    }
    stories
}
