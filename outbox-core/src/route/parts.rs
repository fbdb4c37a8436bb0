//! How the parts of a target are named among the parts of a fan-out. Pure.
//!
//! | Stored | Means |
//! | --- | --- |
//! | `kafka` | the target is done |
//! | `!kafka` | the target has refused the event |
//! | `here/mail` | of the target `here`, the part `mail` is done |
//! | `!here/mail` | of the target `here`, the part `mail` has refused the event |
//! | anything else | from before there was a fan-out: every target is told |

use crate::PartName;

const SEPARATOR: char = '/';

/// A target's name, split off a stored one: whether it is a refusal, and what comes behind the target.
fn of_target<'a>(stored: &'a PartName, target: &str) -> Option<(bool, &'a str)> {
    let (refusal, text) = match stored.refused() {
        Some(text) => (true, text),
        None => (false, stored.as_str()),
    };
    Some((refusal, text.strip_prefix(target)?.strip_prefix(SEPARATOR)?))
}

fn stored(refusal: bool, text: &str) -> Option<PartName> {
    let mark = if refusal {
        PartName::REFUSAL.to_string()
    } else {
        String::new()
    };
    PartName::new(format!("{mark}{text}")).ok()
}

/// Whether a target is through with the event, one way or the other.
pub(super) fn is_settled(target: &PartName, before: &[PartName]) -> bool {
    before
        .iter()
        .any(|part| part == target || part.refused() == Some(target.as_str()))
}

/// What a target is told of the parts that are done.
pub(super) fn told(target: &PartName, targets: &[&PartName], before: &[PartName]) -> Vec<PartName> {
    let is_ours = |part: &&PartName| {
        targets.iter().any(|target| {
            let whole = part.refused().unwrap_or(part.as_str()) == target.as_str();
            whole || of_target(part, target.as_str()).is_some()
        })
    };
    let own = before.iter().filter_map(|part| of_target(part, target.as_str()));
    let own = own.filter_map(|(refusal, text)| stored(refusal, text));
    own.chain(before.iter().filter(|part| !is_ours(part)).cloned())
        .collect()
}

/// A target's part as it is stored. `None` if the names together are too long: then the part runs again.
pub(super) fn kept(target: &PartName, part: &PartName) -> Option<PartName> {
    let (refusal, text) = match part.refused() {
        Some(text) => (true, text),
        None => (false, part.as_str()),
    };
    stored(refusal, &format!("{target}{SEPARATOR}{text}"))
}

/// The parts of a target as they were stored before.
pub(super) fn is_of(target: &PartName, part: &PartName) -> bool {
    of_target(part, target.as_str()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Vec<PartName> {
        texts.iter().map(|text| PartName::new(text).unwrap()).collect()
    }

    #[test]
    fn a_target_is_told_its_own_parts_and_what_was_there_before() {
        let [here, kafka] = [&names(&["here"])[0], &names(&["kafka"])[0]];
        let before = names(&["kafka", "here/mail", "!here/bill", "old", "!old-too", "kafka/x"]);

        let told_here = told(here, &[here, kafka], &before);

        assert_eq!(told_here, names(&["mail", "!bill", "old", "!old-too"]));
        assert!(is_settled(kafka, &before));
        assert!(!is_settled(here, &before));
        assert!(is_settled(here, &names(&["!here"])));
    }

    #[test]
    fn a_part_is_kept_under_its_target_with_the_mark_in_front() {
        let here = &names(&["here"])[0];

        assert_eq!(
            kept(here, &names(&["mail"])[0]),
            Some(names(&["here/mail"])[0].clone())
        );
        assert_eq!(
            kept(here, &names(&["!mail"])[0]),
            Some(names(&["!here/mail"])[0].clone())
        );
        assert_eq!(kept(here, &PartName::new("x".repeat(200)).unwrap()), None);
    }
}
