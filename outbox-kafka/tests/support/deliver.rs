//! One delivery at a time.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Delivery, Dispatcher, Envelope};
use tokio::time::Instant;

use super::event::{Id, envelope};

pub(crate) fn delivery(envelope: Arc<Envelope>) -> Delivery {
    Delivery::new(envelope, Instant::now() + Duration::from_secs(30))
}

/// Tries again for a while: a new topic may not be known yet to the broker that is asked.
pub(crate) async fn until_delivered(dispatcher: &(impl Dispatcher + ?Sized), id: Id) {
    let patience = Instant::now() + Duration::from_secs(60);
    while let Err(failure) = dispatcher.dispatch(&delivery(envelope(id))).await {
        assert!(Instant::now() < patience, "{failure:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
