//! Events of one ordering key that were claimed together: one is at work, the others wait behind it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How much of a run is left. Changed by the relay's loop alone.
#[derive(Debug)]
pub(super) struct Run {
    held: AtomicUsize,
    unrecorded: AtomicUsize,
}

impl Run {
    pub(super) fn new(events: usize) -> Self {
        Self {
            held: AtomicUsize::new(events),
            unrecorded: AtomicUsize::new(events),
        }
    }

    /// One of its events is held no more; whether others are.
    pub(super) fn take_one(&self) -> bool {
        self.held.fetch_sub(1, Ordering::Relaxed) > 1
    }

    /// The source has answered for one of its events; whether that was the last one, which frees the key.
    pub(super) fn record_one(&self) -> bool {
        self.unrecorded.fetch_sub(1, Ordering::Relaxed) == 1
    }
}
