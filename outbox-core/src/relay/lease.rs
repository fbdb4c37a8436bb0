//! How long this relay may believe that it holds a claim.
//!
//! # Time
//! The source's clock decides when a lease ends; this process only knows when it asked. So it trusts a lease from the
//! instant *before* the request, less a margin, by its monotonic clock. Past that it starts nothing under the claim
//! and calls off what runs. What has finished is still offered to the source, whose fence decides.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::work::HeldId;
use crate::ClaimToken;

/// Part of the lease that is left unused, for the time that a clock or a thread may lose.
pub(super) fn margin(lease: Duration) -> Duration {
    (lease / 10).min(Duration::from_secs(2))
}

/// One claim that this relay holds; shared with the workers that deliver its events.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) token: ClaimToken,
    epoch: Instant,
    /// Milliseconds after `epoch` up to which the claim is believed in.
    trusted_ms: AtomicU64,
    /// The source has said that the claim is gone.
    lost: AtomicBool,
    /// Events not settled yet. Changed by the relay's loop alone.
    unsettled: AtomicUsize,
    /// Events of it that go back instead of being begun, if there are any.
    going_back: Mutex<HashSet<HeldId>>,
    any_goes_back: AtomicBool,
}

impl Lease {
    pub(super) fn new(token: ClaimToken, asked: Instant, lease: Duration) -> Self {
        let this = Self {
            token,
            epoch: asked,
            trusted_ms: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            unsettled: AtomicUsize::new(0),
            going_back: Mutex::default(),
            any_goes_back: AtomicBool::new(false),
        };
        this.extend(asked, lease);
        this
    }

    pub(super) fn extend(&self, asked: Instant, lease: Duration) {
        let end = asked + lease - margin(lease);
        let ms = end.duration_since(self.epoch).as_millis();
        self.trusted_ms
            .store(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Whether work under this claim may begin or go on.
    pub(super) fn is_trusted(&self, now: Instant) -> bool {
        let end = self.epoch + Duration::from_millis(self.trusted_ms.load(Ordering::Acquire));
        now < end && !self.is_lost()
    }

    /// How long ago the claim was asked for.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.epoch)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    pub(super) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Lets an event go back, unless its worker has found already that it may begin: what the worker reads then decides.
    pub(super) fn send_back(&self, event: HeldId) {
        let going_back = self.going_back.lock();
        going_back.unwrap_or_else(PoisonError::into_inner).insert(event);
        self.any_goes_back.store(true, Ordering::Release);
    }

    pub(super) fn goes_back(&self, event: HeldId) -> bool {
        let any = self.any_goes_back.load(Ordering::Acquire);
        let going_back = || self.going_back.lock().unwrap_or_else(PoisonError::into_inner);
        any && going_back().contains(&event)
    }

    pub(super) fn add_unsettled(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn settle_one(&self) {
        self.unsettled.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_lost() || self.unsettled.load(Ordering::Relaxed) == 0
    }
}
