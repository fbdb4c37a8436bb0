//! What a registry accepts, what it refuses, and what the relay learns from it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{Context, Dispatcher, Event, EventType, HandlerError, KeyPolicy, Limits, RetryPolicy};
use outbox_inproc::{HandlerOptions, Registry, RegistryError};

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

async fn charge(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

async fn thank(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

fn order_placed() -> EventType {
    EventType::new(OrderPlaced::EVENT_TYPE).unwrap()
}

#[test]
fn an_empty_registry_is_refused_unless_allowed() {
    assert_eq!(Registry::new().build().unwrap_err(), RegistryError::Empty);
    assert!(Registry::new().allow_empty().build().is_ok());
}

#[test]
fn two_handlers_of_one_name_are_refused_and_both_are_named() {
    let error = Registry::new()
        .on::<OrderPlaced>("mail", charge)
        .on::<OrderPlaced>("mail", thank)
        .build()
        .unwrap_err()
        .to_string();

    assert!(
        error.starts_with("two handlers of `OrderPlaced` are named `mail`: `registry::charge` ("),
        "{error}"
    );
    assert!(
        error.contains("and `registry::thank` (") && error.contains("registry.rs:"),
        "{error}"
    );
}

#[test]
fn a_name_that_cannot_be_stored_is_refused() {
    for (name, reason) in [
        ("", "part name is empty"),
        ("!mail", "`!` at the beginning marks refusals"),
        ("a\nb", "control character"),
        (&*"x".repeat(200), "part name has 201 bytes"),
    ] {
        let error = Registry::new()
            .on::<OrderPlaced>(name, charge)
            .build()
            .unwrap_err()
            .to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_handler_without_time_is_refused() {
    let options = HandlerOptions::new("billing").with_timeout(Duration::ZERO);

    let error = Registry::new()
        .on::<OrderPlaced>(options, charge)
        .build()
        .unwrap_err();

    assert!(matches!(error, RegistryError::ZeroTimeout { .. }), "{error}");
}

#[test]
fn the_policy_of_an_event_gives_each_handler_what_it_asks_for() {
    let retry = RetryPolicy::fixed(NonZeroU32::new(20).unwrap(), Duration::from_secs(1));
    let patient = HandlerOptions::new("billing")
        .with_retry(retry.clone())
        .with_timeout(Duration::from_secs(60))
        .with_key(KeyPolicy::Park);
    let dispatcher = Registry::new()
        .on::<OrderPlaced>(patient, charge)
        .on::<OrderPlaced>("mail", thank)
        .build()
        .unwrap();
    let (lease, usual) = (Duration::from_secs(30), Duration::from_secs(20));

    dispatcher.prepare(&Limits::new(lease, usual, 100)).unwrap();
    let policy = dispatcher.policy(&order_placed());

    assert_eq!(policy.retry, Some(retry));
    assert_eq!(policy.timeout, Some(Duration::from_secs(60)));
    assert_eq!(policy.key, KeyPolicy::Park);
    assert_eq!(
        dispatcher.policy(&EventType::new("OrderLost").unwrap()),
        outbox_core::Policy::default()
    );
}

#[test]
fn handlers_are_counted_by_event_type() {
    let dispatcher = Registry::new()
        .on::<OrderPlaced>("billing", charge)
        .on::<OrderPlaced>("mail", thank)
        .build()
        .unwrap();

    assert_eq!(
        dispatcher.handler_counts().into_iter().collect::<Vec<_>>(),
        [("OrderPlaced", 2)]
    );
    assert!(format!("{dispatcher:?}").contains(r#"{"OrderPlaced": 2}"#));
}
