//! Values of labels, bounded: event types come from outside, and each new one costs memory here and in every store of metrics.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

/// What stands for all values beyond the limit.
pub(crate) const OTHER: &str = "other";

/// The first values as they are, `other` for the rest.
#[derive(Debug)]
pub(crate) struct Labels {
    known: RwLock<HashSet<Arc<str>>>,
    limit: usize,
    other: Arc<str>,
}

impl Labels {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            known: RwLock::default(),
            limit,
            other: Arc::from(OTHER),
        }
    }

    pub(crate) fn of(&self, value: &str) -> Arc<str> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = known.get(value) {
            return Arc::clone(label);
        }
        let full = known.len() >= self.limit;
        drop(known);
        if full {
            return Arc::clone(&self.other);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been faster, and may have taken the last place.
        if let Some(label) = known.get(value) {
            return Arc::clone(label);
        }
        if known.len() >= self.limit {
            return Arc::clone(&self.other);
        }
        let label: Arc<str> = Arc::from(value);
        known.insert(Arc::clone(&label));
        label
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_limit_share_a_label() {
        let labels = Labels::new(2);

        let seen: Vec<Arc<str>> = ["a", "b", "c", "a", "d"].map(|value| labels.of(value)).into();

        assert_eq!(seen, ["a", "b", "other", "a", "other"].map(Arc::from));
    }
}
