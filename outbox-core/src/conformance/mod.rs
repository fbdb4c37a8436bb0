//! The contract of [`Source`] as tests that every source can run.
//!
//! One async function per clause of the contract, named after what the clause promises, over a [`Harness`] that knows
//! the source under test. [`source_conformance!`](crate::source_conformance) makes each of them a test of its own:
//!
//! ```
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! use outbox_core::conformance::{Counts, Harness};
//! use outbox_core::memory::MemorySource;
//! use outbox_core::{Envelope, EventId, Source};
//!
//! struct InMemory(Arc<MemorySource>);
//!
//! #[async_trait::async_trait]
//! impl Harness for InMemory {
//!     fn source(&self) -> Arc<dyn Source> { self.0.clone() }
//!     fn short_lease(&self) -> Duration { Duration::from_secs(1) }
//!     async fn publish(&self, envelope: Envelope, delay: Duration) { self.0.publish_after(envelope, delay); }
//!     async fn counts(&self) -> Counts {
//!         let counts = self.0.counts();
//!         Counts { pending: counts.pending, completed: counts.completed, failed: counts.failed }
//!     }
//! #   async fn publish_undecodable(&self, id: EventId) { unimplemented!() }
//!     // ...
//! }
//!
//! # #[cfg(test)]
//! outbox_core::source_conformance! {
//!     harness = InMemory(Arc::new(MemorySource::new())), // evaluated anew in every test
//!     leases = yes,
//!     schedules = yes,
//!     excluded_types = yes,
//!     ordering = yes,
//!     key_policies = no, // shown as ignored, with the reason
//!     pauses = no,
//!     undecodable = no,
//!     hints = yes,
//! }
//! ```
//!
//! # Writing a harness
//! - The harness expression is evaluated in every test, and may `.await`. It yields a source that holds nothing.
//! - A source with a clock of its own (a database) leaves [`Harness::pass`] as it is and gives a
//!   [`short_lease`](Harness::short_lease) of about a second: long enough for a few calls on a busy machine, short
//!   enough to wait for. A source on tokio's clock pauses it in the harness (`tokio::time::pause()`): then no test takes
//!   real time.
//! - Where something has to come about, the cases wait for it, up to [`Harness::patience`]. They never take one empty
//!   claim as proof that nothing is there, unless the contract says so.
//!
//! # Capabilities
//! | Name | A source that says `no` |
//! | --- | --- |
//! | `leases` | keeps claims until they are revoked: no lease ends by time alone |
//! | `schedules` | cannot publish an event that is due later |
//! | `excluded_types` | cannot leave event types out of a claim |
//! | `ordering` | keeps no order per key |
//! | `key_policies` | cannot stop or park a key, or has no redrive |
//! | `pauses` | has no operator who pauses event types |
//! | `undecodable` | cannot store what it cannot decode |
//! | `hints` | only polls: `wait` ends at its timeout |
//!
//! This module is for tests and no part of the stable API. Functions panic when the contract is broken.

mod cases;
mod claiming;
mod keeping;
mod keys;
mod settling;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Envelope, EventId, EventType, OrderingKey, Source, TenantId};

pub use claiming::{
    a_claim_stays_within_its_bytes, a_claim_stays_within_its_number_of_events,
    a_claim_takes_no_excluded_type, a_claim_takes_nothing_that_is_due_later,
    a_claimed_event_is_in_no_other_claim, an_event_that_cannot_be_decoded_is_claimed_with_the_reason,
    claims_at_the_same_time_share_nothing, what_was_published_is_what_is_claimed,
};
pub use keeping::{
    a_claim_that_ended_cannot_be_settled, an_extended_claim_is_kept,
    events_of_an_ended_lease_come_again_alone, extending_an_ended_claim_reports_it_and_revives_nothing,
    the_loss_of_a_lone_claim_is_counted, the_loss_of_a_shared_claim_burns_nobody,
    what_is_left_of_a_settled_claim_stays_held, what_was_paused_since_it_was_claimed_is_named_and_stays_held,
};
pub use keys::{
    a_failed_event_lets_its_key_go_on, a_key_with_several_failed_events_waits_for_each,
    a_parked_key_follows_its_failed_event, a_released_event_goes_before_its_followers,
    a_retried_event_holds_up_its_key_and_no_other, a_schedule_holds_up_nobody_before_it_is_due,
    a_stopped_key_waits_until_it_is_resumed, events_of_one_key_are_in_one_claim_at_a_time,
    events_of_one_key_come_in_publish_order, the_same_key_of_another_tenant_is_another_key,
};
pub use settling::{
    a_completed_event_is_never_claimed_again, a_failed_event_is_never_claimed_again,
    a_released_event_comes_again_without_counting_an_attempt,
    a_retried_event_comes_again_with_the_next_attempt, a_settled_event_cannot_be_settled_again,
    a_settlement_with_another_token_changes_nothing, dropped_calls_leave_at_most_a_claim_that_ends,
};
pub use waiting::{wait_returns_after_its_timeout, wait_returns_early_when_an_event_is_published};

/// How many events stand where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "harnesses outside of this crate build it"
)]
pub struct Counts {
    /// Neither completed nor failed.
    pub pending: usize,
    /// Completed.
    pub completed: usize,
    /// Failed for good.
    pub failed: usize,
}

/// What the conformance suite has to know about a source beside its trait.
///
/// The methods with a default are asked only of sources with the capability; see the [module](self).
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The source under test. Empty at first, and the same one at every call.
    fn source(&self) -> Arc<dyn Source>;

    /// A lease that the suite can wait for, and within which it can make a few calls.
    fn short_lease(&self) -> Duration;

    /// Publishes an event that is due after `delay`; zero means at once. It is committed when this returns.
    async fn publish(&self, envelope: Envelope, delay: Duration);

    /// Counts all events.
    async fn counts(&self) -> Counts;

    /// Lets time pass on the source's clock.
    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// How long to wait for something that has to come about.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Stores an event of this id, without a tenant, whose content cannot be decoded. Needs `undecodable`.
    async fn publish_undecodable(&self, id: EventId) {
        unimplemented!("this harness cannot store the undecodable event {id}")
    }

    /// Pauses an event type. Needs `pauses`.
    async fn pause(&self, event_type: &EventType) {
        unimplemented!("this harness cannot pause {event_type}")
    }

    /// Lets a stopped key go on. Needs `key_policies`.
    async fn resume(&self, tenant: &TenantId, key: &OrderingKey) {
        unimplemented!("this harness cannot resume {key} of {tenant}")
    }

    /// Makes a failed event pending again. Needs `key_policies`.
    async fn redrive(&self, tenant: &TenantId, id: EventId) {
        unimplemented!("this harness cannot redrive {id} of {tenant}")
    }
}

/// Makes every case of the suite a test of its own; see [`conformance`](crate::conformance).
///
/// The crate that calls it needs `tokio` with its macros among its (dev-)dependencies.
#[macro_export]
macro_rules! source_conformance {
    (
        harness = $harness:expr,
        leases = $leases:ident,
        schedules = $schedules:ident,
        excluded_types = $excluded:ident,
        ordering = $ordering:ident,
        key_policies = $policies:ident,
        pauses = $pauses:ident,
        undecodable = $undecodable:ident,
        hints = $hints:ident $(,)?
    ) => {
        $crate::__conformance_cases! { $harness, yes, "",
            what_was_published_is_what_is_claimed
            a_claimed_event_is_in_no_other_claim
            claims_at_the_same_time_share_nothing
            a_claim_stays_within_its_number_of_events
            a_claim_stays_within_its_bytes
            a_settlement_with_another_token_changes_nothing
            a_settled_event_cannot_be_settled_again
            a_completed_event_is_never_claimed_again
            a_failed_event_is_never_claimed_again
            a_retried_event_comes_again_with_the_next_attempt
            a_released_event_comes_again_without_counting_an_attempt
            an_extended_claim_is_kept
            wait_returns_after_its_timeout
        }
        $crate::__conformance_cases! { $harness, $leases, "this source's claims do not end by time",
            a_claim_that_ended_cannot_be_settled
            what_is_left_of_a_settled_claim_stays_held
            events_of_an_ended_lease_come_again_alone
            the_loss_of_a_lone_claim_is_counted
            the_loss_of_a_shared_claim_burns_nobody
            extending_an_ended_claim_reports_it_and_revives_nothing
            dropped_calls_leave_at_most_a_claim_that_ends
        }
        $crate::__conformance_cases! { $harness, $schedules, "this source has no schedules",
            a_claim_takes_nothing_that_is_due_later
            a_schedule_holds_up_nobody_before_it_is_due
        }
        $crate::__conformance_cases! { $harness, $excluded, "this source cannot leave event types out",
            a_claim_takes_no_excluded_type
        }
        $crate::__conformance_cases! { $harness, $ordering, "this source keeps no order per key",
            events_of_one_key_are_in_one_claim_at_a_time
            events_of_one_key_come_in_publish_order
            the_same_key_of_another_tenant_is_another_key
            a_retried_event_holds_up_its_key_and_no_other
            a_released_event_goes_before_its_followers
            a_failed_event_lets_its_key_go_on
        }
        $crate::__conformance_cases! { $harness, $policies, "this source has no key policies",
            a_stopped_key_waits_until_it_is_resumed
            a_parked_key_follows_its_failed_event
            a_key_with_several_failed_events_waits_for_each
        }
        $crate::__conformance_cases! { $harness, $pauses, "nobody can pause event types of this source",
            what_was_paused_since_it_was_claimed_is_named_and_stays_held
        }
        $crate::__conformance_cases! { $harness, $undecodable, "this source stores nothing that it cannot decode",
            an_event_that_cannot_be_decoded_is_claimed_with_the_reason
        }
        $crate::__conformance_cases! { $harness, $hints, "this source gives no hints",
            wait_returns_early_when_an_event_is_published
        }
    };
}

/// Part of [`source_conformance!`](crate::source_conformance).
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($harness:expr, yes, $reason:literal, $($case:ident)*) => {
        $(
            #[::tokio::test]
            async fn $case() {
                $crate::conformance::$case(&$harness).await;
            }
        )*
    };
    ($harness:expr, no, $reason:literal, $($case:ident)*) => {
        $(
            #[::tokio::test]
            #[ignore = $reason]
            async fn $case() {
                $crate::conformance::$case(&$harness).await;
            }
        )*
    };
}
