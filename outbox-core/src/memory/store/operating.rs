//! What an operator does to events that have failed, and to keys that they hold up.

use super::Store;
use crate::memory::row::{Key, Status};

impl Store {
    /// Lets a failed event be delivered again, with all its attempts.
    pub(in crate::memory) fn redrive(&mut self, position: i64) -> bool {
        let Some(row) = self.rows.get_mut(&position) else {
            return false;
        };
        if row.status != Status::Failed || row.discarded {
            return false;
        }
        row.status = Status::Pending;
        row.failures = 0;
        row.lost_claims = 0;
        self.unblock(position);
        self.open(position);
        true
    }

    /// Gives a failed event up; what was parked behind it goes on.
    pub(in crate::memory) fn discard(&mut self, position: i64) -> bool {
        let Some(row) = self.rows.get_mut(&position) else {
            return false;
        };
        if row.status != Status::Failed || row.discarded {
            return false;
        }
        row.discarded = true;
        self.unblock(position);
        true
    }

    /// An operator has decided about the event: its key waits for it no longer.
    fn unblock(&mut self, position: i64) {
        let Some(name) = self.rows.get(&position).and_then(|row| row.key.clone()) else {
            return;
        };
        if let Some(key) = self.keys.get_mut(&name) {
            key.parked.remove(&position);
            key.stopped.remove(&position);
            self.relist(&name);
        }
    }

    /// Lets a stopped key go on.
    pub(in crate::memory) fn resume(&mut self, name: &Key) -> bool {
        let Some(key) = self.keys.get_mut(name) else {
            return false;
        };
        let stopped = std::mem::take(&mut key.stopped);
        self.relist(name);
        !stopped.is_empty()
    }
}
