//! What a user publishes.

use serde::{Serialize, de::DeserializeOwned};

/// A fact that a module tells to others.
///
/// Usually derived:
///
/// ```text
/// #[derive(serde::Serialize, serde::Deserialize, outbox::Event)]
/// #[event(aggregate = "order", id = order_id, key = order_id)]
/// struct OrderPlaced { order_id: String, total: u64 }
/// ```
///
/// The payload is the value's JSON. Names go through the same checks as
/// [`EventType`](crate::EventType) and the others when the event is published.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    label = "this type cannot be published or handled",
    note = "put `#[derive(serde::Serialize, serde::Deserialize, outbox::Event)]` on `{Self}`, or implement `outbox::Event` by hand"
)]
pub trait Event: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The name that handlers register for. Part of the stored data: renaming the Rust type must not change it by accident.
    const EVENT_TYPE: &'static str;

    /// What kind of thing the event is about, if any.
    const AGGREGATE_TYPE: Option<&'static str> = None;

    /// The version of the payload's form. Travels as the header [`schema-version`](crate::header::SCHEMA_VERSION) when above 1.
    const SCHEMA_VERSION: u32 = 1;

    /// Which thing the event is about, if any.
    fn aggregate_id(&self) -> Option<String> {
        None
    }

    /// Events with the same key are handled one at a time, in publish order. `None`: no order is kept.
    fn ordering_key(&self) -> Option<String> {
        None
    }
}
