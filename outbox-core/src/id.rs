//! Ids that nobody may mix up.

use std::fmt;
use uuid::Uuid;

/// The id of an event, chosen by its publisher; unique within a tenant.
///
/// New ids are UUIDs of version 7, so they sort by the time they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct EventId(Uuid);

impl EventId {
    /// Makes a new id from the current time and randomness.
    #[must_use]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an id made elsewhere, such as one derived from a request, to publish at most once.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The id as a UUID.
    #[must_use]
    pub const fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl Default for EventId {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl std::str::FromStr for EventId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, uuid::Error> {
        Uuid::parse_str(text).map(Self)
    }
}

/// Proof of holding a claim: a number that orders claims, and a secret that nobody can guess from it.
///
/// A token is never given out twice, so a relay that was paused past its lease cannot end a later claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimToken {
    number: i64,
    secret: i64,
}

impl ClaimToken {
    /// Puts a token together; only a source does this.
    #[must_use]
    pub const fn from_parts(number: i64, secret: i64) -> Self {
        Self { number, secret }
    }

    /// The claim's number.
    #[must_use]
    pub const fn number(&self) -> i64 {
        self.number
    }

    /// The claim's secret.
    #[must_use]
    pub const fn secret(&self) -> i64 {
        self.secret
    }
}

impl fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimToken({})", self.number)
    }
}

/// Where an event stands in its source: a sequence number, or an offset. Unique within a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub i64);
