//! How the ends of an event's handlers become the end of its delivery. No I/O.

use std::fmt::Write;
use std::time::Duration;

use outbox_core::{Delivered, Failure, FailureKind, PartName};

/// About what a relay stores of an error, unless it is set otherwise.
const SUMMARY_LIMIT: usize = 2_000;

/// What a handler's text gets in any case, in bytes.
const TEXT_MIN: usize = 40;

/// How one handler's try ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartEnd {
    /// It handled the event.
    Done,
    /// It did not.
    Failed(PartFailure),
}

/// Why one handler did not handle the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartFailure {
    pub(crate) kind: FailureKind,
    pub(crate) text: String,
    pub(crate) retry_after: Option<Duration>,
}

impl PartFailure {
    pub(crate) fn new(kind: FailureKind, text: String) -> Self {
        Self {
            kind,
            text,
            retry_after: None,
        }
    }
}

/// Whether a handler is through with the event, one way or the other.
pub(crate) fn is_settled(handler: &PartName, done: &[PartName]) -> bool {
    done.iter()
        .any(|part| part == handler || part.refused() == Some(handler.as_str()))
}

/// What a refusal of an earlier try says in the end.
fn refused_earlier(refusal: &PartName) -> Option<(&str, String)> {
    let mut text = "refused the event in an earlier try".to_owned();
    if let Some(reason) = refusal.reason() {
        text = format!("{text}: {reason}");
    }
    Some((refusal.refused()?, text))
}

/// Combines what earlier tries have left with the ends of this try.
///
/// Retries go on while any handler wants one; then a refusal, of this try or an earlier one, fails the event.
pub(crate) fn combine<'a>(
    before: &[PartName],
    ends: impl IntoIterator<Item = (&'a PartName, PartEnd)>,
) -> Result<Delivered, Failure> {
    let mut done = before.to_vec();
    let mut open: Option<FailureKind> = None;
    let mut retry_after = None;
    let mut failures: Vec<(&str, String)> = before.iter().filter_map(refused_earlier).collect();
    let mut refused = !failures.is_empty();

    for (handler, end) in ends {
        let PartEnd::Failed(failure) = end else {
            done.push(handler.clone());
            continue;
        };
        if failure.kind == FailureKind::Reject {
            refused = true;
            // Its name was seen to have room for the mark when it was registered.
            done.extend(handler.refusal_because(&failure.text));
        } else {
            open = Some(heavier(open, failure.kind));
            retry_after = retry_after.max(failure.retry_after);
        }
        failures.push((handler.as_str(), failure.text));
    }

    match open {
        Some(kind) => Err(Failure::new(kind, summary(&failures))
            .with_done(done)
            .with_retry_after(retry_after)),
        None if refused => {
            // Only what is done stays on record: a redrive lets those who refused try again.
            done.retain(|part| part.refused().is_none());
            Err(Failure::new(FailureKind::Reject, summary(&failures)).with_done(done))
        }
        None => Ok(Delivered::Handled),
    }
}

/// Names every handler that failed. When there are several, no text may crowd out the others'.
fn summary(failures: &[(&str, String)]) -> String {
    let share = match failures.len() {
        0 | 1 => usize::MAX,
        several => SUMMARY_LIMIT / several,
    };
    let mut summary = String::new();
    for (handler, text) in failures {
        let separator = if summary.is_empty() { "" } else { "; " };
        let room = share
            .saturating_sub("; handler : …".len() + handler.len())
            .max(TEXT_MIN);
        let (text, rest) = text.split_at(text.floor_char_boundary(room));
        let more = if rest.is_empty() { "" } else { "…" };
        // Writing to a String cannot fail.
        let _ = write!(summary, "{separator}handler {handler}: {text}{more}");
    }
    summary
}

/// Which of two reasons for another try counts: one attempt is charged as soon as one handler wants it charged.
fn heavier(known: Option<FailureKind>, new: FailureKind) -> FailureKind {
    match (known, new) {
        (Some(FailureKind::Retry), _) | (_, FailureKind::Retry) => FailureKind::Retry,
        (Some(FailureKind::Outage), _) | (_, FailureKind::Outage) => FailureKind::Outage,
        _ => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outbox_core::FailureKind::{NotTried, Outage, Reject, Retry};

    fn part(name: &str) -> PartName {
        PartName::new(name).unwrap()
    }

    fn failed(kind: FailureKind, wait: u64) -> PartEnd {
        PartEnd::Failed(PartFailure {
            kind,
            text: format!("{kind:?}"),
            retry_after: (wait > 0).then(|| Duration::from_secs(wait)),
        })
    }

    fn names(done: &[PartName]) -> Vec<&str> {
        done.iter().map(PartName::as_str).collect()
    }

    #[test]
    fn the_kind_of_a_failure_is_the_heaviest_of_its_parts() {
        let cases: [(&[FailureKind], FailureKind); 7] = [
            (&[Retry, Outage], Retry),
            (&[Outage, NotTried], Outage),
            (&[NotTried, Outage, Retry], Retry),
            (&[NotTried], NotTried),
            (&[Reject, NotTried], NotTried),
            (&[Reject, Retry], Retry),
            (&[Reject, Reject], Reject),
        ];

        for (kinds, expected) in cases {
            let parts: Vec<_> = (0..kinds.len()).map(|n| part(&format!("p{n}"))).collect();
            let ends = parts.iter().zip(kinds.iter().map(|kind| failed(*kind, 0)));
            assert_eq!(combine(&[], ends).unwrap_err().kind, expected, "{kinds:?}");
        }
    }

    #[test]
    fn a_refusal_is_remembered_while_others_retry_and_fails_the_event_afterwards() {
        let (a, b, c) = (part("a"), part("b"), part("c"));

        let first = combine(
            &[],
            [
                (&a, failed(Reject, 0)),
                (&b, failed(Retry, 0)),
                (&c, PartEnd::Done),
            ],
        )
        .unwrap_err();
        let second = combine(&first.done, [(&b, PartEnd::Done)]).unwrap_err();

        assert_eq!(first.kind, Retry);
        assert_eq!(names(&first.done), ["!a\nReject", "c"]);
        assert_eq!(first.error.to_string(), "handler a: Reject; handler b: Retry");
        assert_eq!(second.kind, Reject);
        assert_eq!(names(&second.done), ["c", "b"]);
        assert_eq!(
            second.error.to_string(),
            "handler a: refused the event in an earlier try: Reject"
        );
    }

    #[test]
    fn the_longest_wait_that_was_asked_for_counts() {
        let (a, b, c) = (part("a"), part("b"), part("c"));

        let ends = [
            (&a, failed(Retry, 5)),
            (&b, failed(Retry, 60)),
            (&c, failed(Retry, 0)),
        ];

        assert_eq!(
            combine(&[], ends).unwrap_err().retry_after,
            Some(Duration::from_secs(60))
        );
    }

    #[test]
    fn a_long_text_does_not_crowd_out_the_other_handlers() {
        let parts: Vec<_> = (0..10).map(|n| part(&format!("handler-{n}"))).collect();
        let ends = parts.iter().map(|part| {
            let failure = PartFailure::new(Retry, "ä".repeat(2_000));
            (part, PartEnd::Failed(failure))
        });

        let text = combine(&[], ends).unwrap_err().error.to_string();

        assert!(text.len() <= SUMMARY_LIMIT, "{}", text.len());
        assert!(parts.iter().all(|part| text.contains(part.as_str())), "{text}");
    }
}
