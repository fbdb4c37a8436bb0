//! How the parts of a target are named among the parts of a fan-out. Pure.
//!
//! | Stored | Means |
//! | --- | --- |
//! | `kafka` | the target is done |
//! | `!kafka` | the target has refused the event |
//! | `here/mail` | of the target `here`, the part `mail` is done |
//! | `!here/mail` | of the target `here`, the part `mail` has refused the event |
//! | a refusal with a reason | the same, and why |
//! | anything else | from before there was a fan-out: every target is told |

use crate::PartName;

const SEPARATOR: char = '/';

/// What comes behind the target in a stored name.
fn of_target<'a>(stored: &'a PartName, target: &str) -> Option<&'a str> {
    let text = stored.refused().unwrap_or(stored.as_str());
    text.strip_prefix(target)?.strip_prefix(SEPARATOR)
}

/// A part under another name. A refusal stays one, with its reason.
fn renamed(part: &PartName, name: &str) -> Option<PartName> {
    let name = PartName::new(name).ok()?;
    let named = match (part.refused(), part.reason()) {
        (None, _) => Ok(name),
        (Some(_), None) => name.refusal(),
        (Some(_), Some(reason)) => name.refusal_because(reason),
    };
    named.ok()
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
    let own = before
        .iter()
        .filter_map(|part| renamed(part, of_target(part, target.as_str())?));
    own.chain(before.iter().filter(|part| !is_ours(part)).cloned())
        .collect()
}

/// A target's part as it is stored. `None` if the names together are too long: then the part runs again.
pub(super) fn kept(target: &PartName, part: &PartName) -> Option<PartName> {
    let text = part.refused().unwrap_or(part.as_str());
    renamed(part, &format!("{target}{SEPARATOR}{text}"))
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
        let because = names(&["mail"])[0].refusal_because("no address").unwrap();
        let stored = kept(here, &because).unwrap();
        assert_eq!(stored.as_str(), "!here/mail\nno address");
        assert_eq!(told(here, &[here], &[stored]), [because]);
    }
}
