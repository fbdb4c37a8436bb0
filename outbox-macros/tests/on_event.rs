//! Handlers found at link time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox::{
    Context, Delivered, Delivery, Dispatcher, Envelope, Event, EventId, EventType, KeyPolicy, Payload,
    Registry, RetryPolicy,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
struct OrderPlaced {
    number: u64,
}

#[derive(Default)]
struct Seen(AtomicU64);

mod billing {
    use outbox::{Context, HandlerError, on_event};

    use super::{OrderPlaced, Ordering, Seen};

    #[on_event]
    pub(crate) async fn charge(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
        let seen = ctx.state::<super::Arc<Seen>>().ok_or("nowhere to write")?;
        seen.0.fetch_add(event.number, Ordering::Relaxed);
        Ok(())
    }
}

mod mail {
    use outbox::{HandlerError, on_event};

    use super::OrderPlaced;

    /// A handler may leave out the context, and destructure the event.
    #[on_event(name = "mail")]
    async fn thank(OrderPlaced { number }: OrderPlaced) -> Result<(), HandlerError> {
        u32::try_from(number)?;
        Ok(())
    }
}

#[derive(Serialize, Deserialize, Event)]
struct OrderLost {}

#[outbox::on_event(
    timeout_secs = 0.5,
    max_attempts = 3,
    retry = RetryPolicy::fixed(NonZeroU32::MIN, Duration::from_secs(9)),
    concurrency = 4,
    key = "park",
)]
async fn search(_: OrderLost, _: Context) -> Result<(), outbox::HandlerError> {
    Ok(())
}

fn delivery(event_type: &str, json: &str) -> Delivery {
    let envelope = Envelope::new(
        EventId::new(),
        EventType::new(event_type).unwrap(),
        Payload::from_json(json),
        jiff::Timestamp::UNIX_EPOCH,
    );
    Delivery::new(
        Arc::new(envelope),
        tokio::time::Instant::now() + Duration::from_secs(20),
    )
}

#[tokio::test]
async fn marked_functions_are_discovered_and_run() {
    let seen = Arc::new(Seen::default());
    let dispatcher = Registry::new()
        .state(Arc::clone(&seen))
        .discover()
        .build()
        .unwrap();

    let delivered = dispatcher
        .dispatch(&delivery("OrderPlaced", r#"{"number": 7}"#))
        .await
        .unwrap();

    assert_eq!(delivered, Delivered::Handled);
    assert_eq!(seen.0.load(Ordering::Relaxed), 7);
}

#[tokio::test]
async fn a_discovered_handler_is_named_by_its_module_and_function_unless_it_says_otherwise() {
    let dispatcher = Registry::new().discover().build().unwrap();

    let failure = dispatcher
        .dispatch(&delivery("OrderPlaced", r#"{"number": 4294967296}"#))
        .await
        .unwrap_err();

    assert_eq!(
        failure
            .error
            .to_string()
            .split("; ")
            .collect::<std::collections::BTreeSet<_>>(),
        [
            "handler billing::charge: nowhere to write",
            "handler mail: out of range integral type conversion attempted"
        ]
        .into()
    );
}

#[test]
fn discovering_twice_changes_nothing() {
    let dispatcher = Registry::new().discover().discover().build().unwrap();

    assert_eq!(dispatcher.handler_counts()["OrderPlaced"], 2);
}

#[test]
fn a_discovered_handler_beside_one_of_its_name_is_refused_at_its_line() {
    let error = Registry::new()
        .on::<OrderPlaced>("billing::charge", billing::charge)
        .discover()
        .build()
        .unwrap_err()
        .to_string();

    assert!(error.contains("are named `billing::charge`"), "{error}");
    assert_eq!(error.matches("on_event.rs:").count(), 2, "{error}");
}

#[test]
fn options_reach_the_policy_of_the_event() {
    let dispatcher = Registry::new().discover().build().unwrap();

    let policy = dispatcher.policy(&EventType::new("OrderLost").unwrap());

    let three = NonZeroU32::new(3).unwrap();
    assert_eq!(
        policy.retry,
        Some(RetryPolicy::fixed(three, Duration::from_secs(9)))
    );
    assert_eq!(policy.timeout, Some(Duration::from_millis(500)));
    assert_eq!(policy.concurrency, NonZeroU32::new(4));
    assert_eq!(policy.key, KeyPolicy::Park);
}

#[tokio::test]
async fn a_marked_function_can_still_be_called() {
    let delivery = Arc::new(delivery("OrderLost", "{}"));

    search(OrderLost {}, Context::new(delivery, Arc::default()))
        .await
        .unwrap();
}
