//! Events that cannot be read, so that the relay does not know their key.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::{MemorySource, Status};
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, EventId, KeyPolicy, Listening, Policy, Relay, Settled, Settlement,
    Source, SourceError, Undecodable, Wakeup,
};

use crate::world::{Scripted, event, keyed, source, until};

/// A source that can read the key of one of its events, but not the event.
struct Damaged {
    inner: Arc<MemorySource>,
    damaged: EventId,
}

#[async_trait]
impl Source for Damaged {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        let mut claimed = self.inner.claim(request).await?;
        for event in claimed.iter_mut().filter(|event| event.id == self.damaged) {
            let event_type = event
                .envelope
                .as_ref()
                .ok()
                .map(|envelope| envelope.event_type.clone());
            let reason = "headers are no object".to_owned();
            event.envelope = Err(Undecodable { reason, event_type });
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        self.inner.settle(settlements).await
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        self.inner.extend(tokens, lease).await
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        self.inner.wait(timeout).await
    }

    fn listening(&self) -> Listening {
        self.inner.listening()
    }
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_event_stops_its_key_before_what_was_claimed_with_it() {
    for (policy, goes_on) in [
        (KeyPolicy::Stop, false),
        (KeyPolicy::Park, false),
        (KeyPolicy::GoOn, true),
    ] {
        let source = source();
        let (damaged, follower, other) = (keyed("Keyed", "k"), keyed("Plain", "k"), keyed("Plain", "other"));
        for envelope in [&damaged, &follower, &other, &event("Plain")] {
            source.publish_envelope(envelope.clone());
        }
        let dispatcher = Scripted::default().policy("Keyed", Policy::default().with_key(policy));
        let damaging = Damaged {
            inner: source.clone(),
            damaged: damaged.id,
        };
        let relay = Relay::builder(Arc::new(damaging), Arc::new(dispatcher))
            .build()
            .unwrap()
            .spawn();

        let completed = 2 + usize::from(goes_on);
        until("what may go on is completed", || {
            source.counts().completed >= completed
        })
        .await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        relay.shutdown().await.unwrap();

        assert_eq!(source.counts().completed, completed, "{policy:?}");
        assert_eq!(source.status(damaged.id), Some(Status::Failed));
        assert_eq!(source.status(follower.id) == Some(Status::Completed), goes_on);
    }
}
