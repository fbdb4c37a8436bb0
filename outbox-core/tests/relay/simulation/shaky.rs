//! The source as one relay of a simulation sees it: slow, failing, losing answers and hints.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, Listening, Outcome, Settled, Settlement, Source, SourceError, Wakeup,
};
use tokio::time::{Instant, sleep};

use super::World;
use crate::history::{Recorded, What};

pub(super) struct Shaky {
    pub(super) world: Arc<World>,
    pub(super) relay: usize,
}

fn down(operation: &'static str) -> SourceError {
    SourceError::unavailable(operation, "down for a moment")
}

impl Shaky {
    async fn trouble(&self, operation: &'static str) -> Result<(), SourceError> {
        let world = &self.world;
        sleep(world.millis(15)).await;
        if world.fault(4) {
            sleep(world.millis(30_000)).await;
        }
        if world.fault(6) {
            Err(down(operation))
        } else {
            Ok(())
        }
    }
}

#[async_trait]
impl Source for Shaky {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        let world = &self.world;
        world.history.note(What::Asked { relay: self.relay });
        self.trouble("claim").await?;
        let until = Instant::now() + request.lease;
        let claimed = world.memory.claim(request.clone()).await?;
        assert!(
            claimed.len() <= request.max_events.get() as usize,
            "16: too many events"
        );
        for Claimed {
            id, token, attempt, ..
        } in &claimed
        {
            let (id, token, attempt) = (*id, *token, *attempt);
            world.history.note(What::Claimed {
                id,
                token,
                attempt,
                until,
            });
            if world.holders.lock().unwrap().insert(id, token).is_some() {
                world.meet(|met| met.redeliveries += 1);
            }
        }
        self.trouble("claim").await?;
        Ok(claimed)
    }

    async fn settle(&self, mut settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        let world = &self.world;
        self.trouble("settle").await?;
        let presented: Vec<ClaimToken> = settlements.iter().map(|settlement| settlement.token).collect();
        if !world.fenced {
            let holders = world.holders.lock().unwrap();
            for settlement in &mut settlements {
                settlement.token = holders[&settlement.id];
            }
        }
        let settled = world.memory.settle(settlements.clone()).await?;
        world.meet(|met| met.refused_settlements += settled.lost.len());
        for (settlement, presented) in settlements.into_iter().zip(presented) {
            let Settlement {
                token,
                position,
                id,
                outcome,
            } = settlement;
            if settled.lost.contains(&(token, position)) {
                continue;
            }
            let outcome = match outcome {
                Outcome::Completed => Recorded::Completed,
                Outcome::Retry { after, .. } => Recorded::Retry(after),
                Outcome::Failed { .. } => Recorded::Failed,
                Outcome::Released { after, .. } => Recorded::Released(after),
            };
            world.history.note(What::Recorded {
                id,
                token: presented,
                outcome,
            });
        }
        self.trouble("settle").await?;
        Ok(settled)
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        let world = &self.world;
        self.trouble("extend").await?;
        let until = Instant::now() + lease;
        let lost = world.memory.extend(tokens, lease).await?;
        world.meet(|met| met.lost_extensions += lost.len());
        for token in tokens.iter().filter(|token| !lost.contains(token)) {
            world.history.note(What::Extended { token: *token, until });
        }
        if world.fault(20) {
            return Err(down("extend"));
        }
        Ok(lost)
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        if self.world.fault(30) {
            sleep(timeout).await;
            return Wakeup::Timeout;
        }
        self.world.memory.wait(timeout).await
    }

    fn listening(&self) -> Listening {
        Listening::Up
    }
}
