//! A source that fails as each test says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::MemorySource;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, EventId, Listening, Outcome, Settled, Settlement, Source, SourceError,
    Wakeup,
};

/// What goes wrong at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Calls fail before they do anything.
    pub(crate) fail: bool,
    /// Settlements are recorded, but the answer is an error.
    pub(crate) lose_settle_answer: bool,
    /// Claims are made, but the answer is an error.
    pub(crate) lose_claim_answer: bool,
    /// Claims never answer.
    pub(crate) hang_claim: bool,
    /// Settlements never answer.
    pub(crate) hang_settle: bool,
    /// Settlements fail before they do anything.
    pub(crate) fail_settle: bool,
    /// Settlements with text that is not ASCII are refused, as by a database of another encoding.
    pub(crate) refuse_wide_text: bool,
    /// Settlements of this event are refused, whatever they say.
    pub(crate) refuse: Option<EventId>,
    /// Heartbeats fail.
    pub(crate) fail_extend: bool,
    /// Waiting never ends.
    pub(crate) hang_wait: bool,
    /// Waiting panics.
    pub(crate) panic_wait: bool,
    /// No hint ever arrives.
    pub(crate) deaf: bool,
}

impl Faults {
    pub(crate) const fn none() -> Self {
        Self {
            fail: false,
            lose_settle_answer: false,
            lose_claim_answer: false,
            hang_claim: false,
            hang_settle: false,
            fail_settle: false,
            refuse_wide_text: false,
            refuse: None,
            fail_extend: false,
            hang_wait: false,
            panic_wait: false,
            deaf: false,
        }
    }
}

impl Faults {
    fn refuses(&self, settlement: &Settlement) -> bool {
        let wide = match &settlement.outcome {
            Outcome::Retry { error, .. } | Outcome::Failed { error, .. } => !error.is_ascii(),
            _ => false,
        };
        self.refuse == Some(settlement.id) || self.refuse_wide_text && wide
    }
}

pub(crate) struct Faulty {
    inner: Arc<MemorySource>,
    faults: Mutex<Faults>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<MemorySource>) -> Self {
        Self {
            inner,
            faults: Mutex::new(Faults::none()),
        }
    }

    pub(crate) fn set(&self, faults: Faults) {
        *self.faults.lock().unwrap() = faults;
    }

    fn now(&self) -> Faults {
        *self.faults.lock().unwrap()
    }
}

fn down(operation: &'static str) -> SourceError {
    SourceError::unavailable(operation, "down for the test")
}

#[async_trait]
impl Source for Faulty {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        let faults = self.now();
        if faults.hang_claim {
            std::future::pending::<()>().await;
        }
        if faults.fail {
            return Err(down("claim"));
        }
        let claimed = self.inner.claim(request).await;
        if faults.lose_claim_answer {
            Err(down("claim"))
        } else {
            claimed
        }
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        let faults = self.now();
        if faults.hang_settle {
            std::future::pending::<()>().await;
        }
        if faults.fail || faults.fail_settle {
            return Err(down("settle"));
        }
        if settlements.iter().any(|settlement| faults.refuses(settlement)) {
            return Err(SourceError::refused("settle", "a value that it cannot hold"));
        }
        let settled = self.inner.settle(settlements).await;
        if faults.lose_settle_answer {
            Err(down("settle"))
        } else {
            settled
        }
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        let faults = self.now();
        if faults.fail || faults.fail_extend {
            return Err(down("extend"));
        }
        self.inner.extend(tokens, lease).await
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        let faults = self.now();
        assert!(!faults.panic_wait, "on purpose");
        if faults.hang_wait {
            std::future::pending::<()>().await;
        }
        if faults.deaf {
            tokio::time::sleep(timeout).await;
            return Wakeup::Timeout;
        }
        self.inner.wait(timeout).await
    }

    fn listening(&self) -> Listening {
        if self.now().deaf {
            Listening::Down
        } else {
            Listening::Up
        }
    }
}
