//! Names and keys: short texts with a limit, checked where they enter.

use std::fmt;
use std::sync::Arc;

/// Why a text was refused as a name or a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The text is empty where something has to be named.
    #[error("{what} is empty; it takes 1 to {limit} bytes")]
    Empty {
        /// Which name or key it was to be.
        what: &'static str,
        /// The most bytes it may have.
        limit: usize,
    },
    /// The text is longer than its limit.
    #[error("{what} has {bytes} bytes; it takes at most {limit}")]
    TooLong {
        /// Which name or key it was to be.
        what: &'static str,
        /// How many bytes it has.
        bytes: usize,
        /// The most bytes it may have.
        limit: usize,
    },
    /// The text holds a control character; Postgres, Kafka headers and logs disagree about those.
    #[error("{what} holds the control character U+{code:04X} at byte {at}; only printable text is accepted")]
    Control {
        /// Which name or key it was to be.
        what: &'static str,
        /// The character's code point.
        code: u32,
        /// The byte at which it starts.
        at: usize,
    },
}

fn check(text: &str, what: &'static str, least: usize, limit: usize) -> Result<(), TextError> {
    if text.len() < least {
        return Err(TextError::Empty { what, limit });
    }
    if text.len() > limit {
        return Err(TextError::TooLong {
            what,
            bytes: text.len(),
            limit,
        });
    }
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, c)) => Err(TextError::Control {
            what,
            code: u32::from(c),
            at,
        }),
        None => Ok(()),
    }
}

/// Defines a newtype over a shared text with a minimum and a maximum length in bytes.
macro_rules! text_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $least:literal..=$limit:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The most bytes that it may have.
            pub const LIMIT: usize = $limit;

            /// Checks and takes the text.
            ///
            /// # Errors
            /// [`TextError`] when the text is too short, too long, or holds a control character.
            pub fn new(text: impl AsRef<str>) -> Result<Self, TextError> {
                let text = text.as_ref();
                check(text, $what, $least, $limit)?;
                Ok(Self(Arc::from(text)))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = TextError;
            fn try_from(text: &str) -> Result<Self, TextError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = TextError;
            fn try_from(text: String) -> Result<Self, TextError> {
                Self::new(text)
            }
        }

        impl std::str::FromStr for $name {
            type Err = TextError;
            fn from_str(text: &str) -> Result<Self, TextError> {
                Self::new(text)
            }
        }
    };
}

text_type! {
    /// What kind of fact an event is, such as `OrderPlaced`. Handlers register for it.
    EventType, "event type", 1..=200
}
text_type! {
    /// What kind of thing an event is about, such as `order`.
    AggregateType, "aggregate type", 1..=200
}
text_type! {
    /// Which thing an event is about, such as an order's number.
    AggregateId, "aggregate id", 1..=500
}
text_type! {
    /// Events that share it (within a tenant) are handled one at a time, in publish order.
    OrderingKey, "ordering key", 1..=500
}
text_type! {
    /// Whose event it is. Empty where there are no tenants.
    TenantId, "tenant id", 0..=200
}
text_type! {
    /// A named part of a delivery with an outcome of its own: a handler, or a target of a fan-out.
    PartName, "part name", 1..=200
}

impl Default for TenantId {
    /// The tenant of systems without tenants: empty.
    fn default() -> Self {
        Self(Arc::from(""))
    }
}

impl TenantId {
    /// Whether this is the tenant of systems without tenants.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartName {
    /// What a refusal begins with. No part of a dispatcher may have a name of its own that begins so.
    pub const REFUSAL: char = '!';

    /// The most bytes of its reason that a refusal keeps: about what a relay stores of an error, unless that is set otherwise.
    pub const REASON_MAX: usize = 2_000;

    /// What stands between a refusal and its reason. No name can hold it.
    const BECAUSE: char = '\n';

    /// The note, among the parts done, that this part refused the event while others still wanted another try.
    ///
    /// It keeps the part from running again until the others are through; then the event fails. Refusals are
    /// forgotten when it has, so that a redrive lets the part try once more.
    ///
    /// # Errors
    /// [`TextError`] when the part's name leaves no room for the mark.
    pub fn refusal(&self) -> Result<Self, TextError> {
        Self::new(format!("{}{self}", Self::REFUSAL))
    }

    /// A [`refusal`](Self::refusal) that says why, for the dead letter that it leads to. The reason is shortened to
    /// [`REASON_MAX`](Self::REASON_MAX); control characters in it become spaces.
    ///
    /// # Errors
    /// As [`refusal`](Self::refusal).
    pub fn refusal_because(&self, reason: &str) -> Result<Self, TextError> {
        Ok(self.refusal()?.because(reason))
    }

    /// This refusal, with another reason; `None` if it is none.
    pub(crate) fn with_reason(&self, reason: &str) -> Option<Self> {
        let (refusal, _) = self.as_str().split_once(Self::BECAUSE)?;
        Some(Self(Arc::from(refusal)).because(reason))
    }

    fn because(&self, reason: &str) -> Self {
        let reason = &reason[..reason.floor_char_boundary(Self::REASON_MAX)];
        let reason = reason.replace(char::is_control, " ");
        Self(Arc::from(format!("{self}{}{reason}", Self::BECAUSE)))
    }

    /// Takes a part as a store kept it: a name, or a refusal with or without its reason.
    ///
    /// # Errors
    /// [`TextError`] when the name is none that a part can have.
    pub fn stored(text: &str) -> Result<Self, TextError> {
        match text.split_once(Self::BECAUSE) {
            Some((name, reason)) if name.starts_with(Self::REFUSAL) => Ok(Self::new(name)?.because(reason)),
            _ => Self::new(text),
        }
    }

    /// The name of the part that refused, if this is a [`refusal`](Self::refusal).
    #[must_use]
    pub fn refused(&self) -> Option<&str> {
        let note = self.as_str().strip_prefix(Self::REFUSAL)?;
        Some(note.split_once(Self::BECAUSE).map_or(note, |(name, _)| name))
    }

    /// Why it refused, if this is a refusal [that says so](Self::refusal_because).
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        let (_, reason) = self.as_str().split_once(Self::BECAUSE)?;
        Some(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_is_wrong_with_it() {
        let refusals = [
            (EventType::new(""), "event type is empty; it takes 1 to 200 bytes"),
            (
                EventType::new("é".repeat(101)),
                "event type has 202 bytes; it takes at most 200",
            ),
            (
                EventType::new("a\0b"),
                "event type holds the control character U+0000 at byte 1; only printable text is accepted",
            ),
        ];

        for (refusal, message) in refusals {
            assert_eq!(refusal.unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn only_a_tenant_may_be_empty() {
        assert!(TenantId::new("").unwrap().is_none());
        assert!(OrderingKey::new("").is_err());
    }

    #[test]
    fn a_refusal_names_the_part_that_refused() {
        let part = PartName::new("billing").unwrap();

        let refusal = part.refusal().unwrap();

        assert_eq!(refusal.as_str(), "!billing");
        assert_eq!(refusal.refused(), Some("billing"));
        assert_eq!(part.refused(), None);
        assert!(PartName::new("x".repeat(200)).unwrap().refusal().is_err());
    }

    #[test]
    fn a_refusal_keeps_its_reason_through_a_store() {
        let part = PartName::new("billing").unwrap();

        let refusal = part.refusal_because("no such\ncustomer:\0!7").unwrap();

        assert_eq!(refusal.refused(), Some("billing"));
        assert_eq!(refusal.reason(), Some("no such customer: !7"));
        assert_eq!(PartName::stored(refusal.as_str()), Ok(refusal));
        let plain = part.refusal().unwrap();
        assert_eq!((plain.reason(), part.reason()), (None, None));
        assert_eq!(PartName::stored("!billing"), Ok(plain));
        assert_eq!(PartName::stored("billing"), Ok(part.clone()));
        let long = part.refusal_because(&"é".repeat(2_000)).unwrap();
        assert_eq!(long.reason().map(str::len), Some(PartName::REASON_MAX));
        for damaged in ["", "billing\nno", "\nno", "!\u{7}\nno"] {
            assert!(PartName::stored(damaged).is_err(), "{damaged:?}");
        }
    }
}
