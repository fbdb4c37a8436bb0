//! Events that follow from an event.

use std::future::Future;
use std::sync::LazyLock;

use outbox_core::{Context, IntoNewEvent, PublishError, Published};
use sqlx::PgConnection;

use crate::{Names, PgPublisher};

/// Publishing from inside a handler.
pub trait PublishFollowUp {
    /// Publishes an event that follows from the one being handled, in the handler's transaction.
    ///
    /// It carries on the tenant, names its cause in the header `causation-id`, and stays in the same business process by
    /// `correlation-id`. Published by the [`PgPublisher`] among the application's state (`Registry::state`), else into the
    /// outbox of the default names.
    ///
    /// # Errors
    /// As [`PgPublisher::publish`].
    ///
    /// # Cancel safety
    /// As [`PgPublisher::publish`].
    fn publish(
        &self,
        tx: &mut PgConnection,
        event: impl IntoNewEvent + Send,
    ) -> impl Future<Output = Result<Published, PublishError>> + Send;
}

static DEFAULT: LazyLock<PgPublisher> = LazyLock::new(|| PgPublisher::new(&Names::default()));

impl PublishFollowUp for Context {
    async fn publish(
        &self,
        tx: &mut PgConnection,
        event: impl IntoNewEvent + Send,
    ) -> Result<Published, PublishError> {
        let event = event.into_new_event()?.caused_by(self.envelope());
        self.state().unwrap_or_else(|| &*DEFAULT).publish(tx, event).await
    }
}
