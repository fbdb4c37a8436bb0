//! Handlers that succeed, fail, panic and hang as the seed says.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Delivered, Delivery, Dispatcher, EventId, Failure, FailureKind};
use tokio::time::{Instant, sleep};

use super::World;
use crate::history::{End, What};

/// How an event's handler behaves.
#[derive(Debug, Clone, Copy)]
pub(super) enum Manner {
    Quick,
    Slow(u64),
    FailsUntil(u32),
    Rejects,
    PanicsUntil(u32),
    HangsUntil(u32),
    OutageUntil(Instant),
}

pub(super) struct Handlers(pub(super) Arc<World>);

/// Notes the end of a handler, also when its future is dropped.
struct Running<'a> {
    world: &'a World,
    id: EventId,
    attempt: u32,
    end: End,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let (id, attempt, end) = (self.id, self.attempt, self.end);
        if end == End::Nothing {
            self.world.meet(|met| met.dropped_handlers += 1);
        }
        self.world.history.note(What::Ended { id, attempt, end });
    }
}

#[async_trait]
impl Dispatcher for Handlers {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let (id, attempt) = (delivery.envelope.id, delivery.attempt);
        let world = &*self.0;
        world.history.note(What::Started { id, attempt });
        let mut running = Running {
            world,
            id,
            attempt,
            end: End::Nothing,
        };
        let manner = world.scripts.lock().unwrap()[&id];
        let failed = match manner {
            Manner::Slow(ms) => {
                sleep(Duration::from_millis(ms)).await;
                None
            }
            Manner::FailsUntil(try_) if attempt < try_ => {
                sleep(Duration::from_millis(20)).await;
                Some(FailureKind::Retry)
            }
            Manner::Rejects => Some(FailureKind::Reject),
            Manner::PanicsUntil(try_) if attempt < try_ => panic!("as the seed says"),
            Manner::HangsUntil(try_) if attempt < try_ => std::future::pending().await,
            Manner::OutageUntil(time) if Instant::now() < time => Some(FailureKind::Outage),
            _ => None,
        };
        running.end = match failed {
            None => End::Succeeded,
            Some(FailureKind::Retry) => End::Failed,
            Some(FailureKind::Reject) => End::Rejected,
            Some(_) => End::Nothing,
        };
        match failed {
            None => Ok(Delivered::Handled),
            Some(kind) => Err(Failure::new(kind, "as the seed says")),
        }
    }
}
