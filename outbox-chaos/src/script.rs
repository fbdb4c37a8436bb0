//! What a handler does with an event stands in the event.

use outbox::Event;
use serde::{Deserialize, Serialize};

/// What its handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Succeeds after so many milliseconds.
    Take(u64),
    /// Fails so many times, then succeeds.
    Fail(u32),
    /// Panics so many times, then succeeds.
    Panic(u32),
    /// Gives the event up. Once it was redriven, it succeeds.
    Reject,
    /// Ends the process.
    Abort,
}

/// An event with a script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scripted {
    /// Tells events of one publisher apart.
    pub n: u64,
    /// What its handler does.
    pub act: Act,
    /// Its ordering key.
    pub key: Option<String>,
}

impl Event for Scripted {
    const EVENT_TYPE: &'static str = "Scripted";

    fn ordering_key(&self) -> Option<String> {
        self.key.clone()
    }
}

impl Scripted {
    /// The status that it must end with, unless somebody redrives it.
    #[must_use]
    pub fn ends(&self) -> &'static str {
        match self.act {
            Act::Take(_) | Act::Fail(_) | Act::Panic(_) => "completed",
            Act::Reject | Act::Abort => "failed",
        }
    }
}

/// The same, of a type whose keys park behind an event that failed for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Parking(pub Scripted);

impl Event for Parking {
    const EVENT_TYPE: &'static str = "Parking";

    fn ordering_key(&self) -> Option<String> {
        self.0.ordering_key()
    }
}
