//! Which causes of failures in a row have been said, so that each is said once and none is hidden by another.

use crate::SourceErrorKind;

/// So many causes of a streak are said. An error whose text is always new must not fill the log.
const CAUSES_MAX: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Causes(Vec<(SourceErrorKind, String)>);

impl Causes {
    /// Whether this cause has not been said since the last success. Numbers in its text make no difference: they are
    /// ports, process ids and times.
    pub(super) fn is_news(&mut self, kind: SourceErrorKind, text: &str) -> bool {
        let cause = (kind, text.chars().filter(|c| !c.is_ascii_digit()).collect());
        let news = self.0.len() < CAUSES_MAX && !self.0.contains(&cause);
        if news {
            self.0.push(cause);
        }
        news
    }

    /// The source has answered.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_news_once_until_all_are_forgotten() {
        let mut causes = Causes::default();
        let (down, wrong) = (SourceErrorKind::Unavailable, SourceErrorKind::Misconfigured);

        assert!(causes.is_news(down, "port 5432 is closed"));
        assert!(!causes.is_news(down, "port 5433 is closed"));
        assert!(causes.is_news(wrong, "port 5432 is closed"));
        assert!(causes.is_news(wrong, "no such table"));
        assert!(
            !causes.is_news(down, "port 5432 is closed"),
            "neither when it comes back"
        );

        causes.forget();
        assert!(causes.is_news(down, "port 5432 is closed"));
    }

    #[test]
    fn causes_without_end_are_said_no_more() {
        let mut causes = Causes::default();

        let said = (0..100).filter(|n| causes.is_news(SourceErrorKind::Refused, &"x".repeat(*n)));

        assert_eq!(said.count(), CAUSES_MAX);
    }
}
