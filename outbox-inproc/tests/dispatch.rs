//! Events through a dispatcher, driven by hand the way a relay does it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use outbox_core::{
    Context, Delivered, Delivery, Dispatcher, Envelope, Event, EventId, EventType, Failure, FailureKind,
    Handler, HandlerError, Limits, PartName, Payload, RetryPolicy,
};
use outbox_inproc::{HandlerOptions, InProcDispatcher, Registry, Unhandled};
use tokio::sync::Barrier;
use tokio::time::Instant;

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {
    order: u64,
}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

fn order_placed() -> Delivery {
    delivery(OrderPlaced::EVENT_TYPE, r#"{"order": 7}"#)
}

fn delivery(event_type: &str, json: &str) -> Delivery {
    let envelope = Envelope::new(
        EventId::new(),
        EventType::new(event_type).unwrap(),
        Payload::from_json(json),
        Timestamp::UNIX_EPOCH,
    );
    Delivery::new(Arc::new(envelope), Instant::now() + Duration::from_secs(20))
}

/// The delivery that a relay makes after a failure that is to be tried again.
fn next_try(delivery: &Delivery, failure: Failure) -> Delivery {
    let mut next = delivery.clone();
    next.attempt += 1;
    next.done = failure.done.into();
    next
}

async fn fail(dispatcher: &InProcDispatcher, delivery: &Delivery) -> Failure {
    dispatcher.dispatch(delivery).await.unwrap_err()
}

fn names(done: &[PartName]) -> Vec<&str> {
    done.iter().map(PartName::as_str).collect()
}

async fn succeed(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

#[tokio::test]
async fn structs_functions_and_closures_are_handlers() {
    struct Billing {
        seen: Arc<AtomicU32>,
    }
    impl Handler<OrderPlaced> for Billing {
        async fn handle(&self, event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
            assert_eq!((event.order, ctx.attempt()), (7, 1));
            self.seen.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }
    let seen = Arc::new(AtomicU32::new(0));
    let seen_by_closure = Arc::clone(&seen);
    let dispatcher = Registry::new()
        .on::<OrderPlaced>(
            "billing",
            Billing {
                seen: Arc::clone(&seen),
            },
        )
        .on::<OrderPlaced>("shipping", succeed)
        .on::<OrderPlaced>("mail", move |event: OrderPlaced, _: Context| {
            seen_by_closure.fetch_add(u32::try_from(event.order).unwrap(), Ordering::Relaxed);
            async { Ok(()) }
        })
        .build()
        .unwrap();

    let delivered = dispatcher.dispatch(&order_placed()).await.unwrap();

    assert_eq!(delivered, Delivered::Handled);
    assert_eq!(seen.load(Ordering::Relaxed), 8);
}

#[tokio::test]
async fn of_ten_handlers_only_the_failing_one_runs_again() {
    let runs: Arc<Vec<AtomicU32>> = Arc::new((0..10).map(|_| AtomicU32::new(0)).collect());
    let mut registry = Registry::new();
    for n in 0..10 {
        let runs = Arc::clone(&runs);
        registry = registry.on::<OrderPlaced>(format!("handler-{n}"), move |_: OrderPlaced, _: Context| {
            let run = runs[n].fetch_add(1, Ordering::Relaxed);
            async move {
                if n == 4 && run < 2 {
                    Err("not yet".into())
                } else {
                    Ok(())
                }
            }
        });
    }
    let dispatcher = registry.build().unwrap();
    let first = order_placed();

    let failure = fail(&dispatcher, &first).await;
    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(failure.error.to_string(), "handler handler-4: not yet");
    assert_eq!(failure.done.len(), 9);
    let second = next_try(&first, failure);
    let third = next_try(&second, fail(&dispatcher, &second).await);
    let delivered = dispatcher.dispatch(&third).await.unwrap();

    assert_eq!(delivered, Delivered::Handled);
    let runs: Vec<u32> = runs.iter().map(|runs| runs.load(Ordering::Relaxed)).collect();
    assert_eq!(runs, [1, 1, 1, 1, 3, 1, 1, 1, 1, 1]);
}

#[tokio::test]
async fn handlers_of_one_event_overlap() {
    // Nobody passes before all three have arrived.
    let barrier = Arc::new(Barrier::new(3));
    let mut registry = Registry::new();
    for name in ["a", "b", "c"] {
        let barrier = Arc::clone(&barrier);
        registry = registry.on::<OrderPlaced>(name, move |_: OrderPlaced, _: Context| {
            let barrier = Arc::clone(&barrier);
            async move {
                barrier.wait().await;
                Ok(())
            }
        });
    }

    let delivered = registry.build().unwrap().dispatch(&order_placed()).await.unwrap();

    assert_eq!(delivered, Delivered::Handled);
}

#[tokio::test]
async fn a_refusal_fails_the_event_after_the_others_are_through() {
    let refusals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&refusals);
    let dispatcher = Registry::new()
        .on::<OrderPlaced>("refuses", move |_: OrderPlaced, _: Context| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Err(HandlerError::reject("no such customer")) }
        })
        .on::<OrderPlaced>("hesitates", |_: OrderPlaced, ctx: Context| async move {
            if ctx.attempt() < 3 {
                Err("not yet".into())
            } else {
                Ok(())
            }
        })
        .on::<OrderPlaced>("succeeds", succeed)
        .build()
        .unwrap();
    let first = order_placed();

    let failure = fail(&dispatcher, &first).await;
    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(names(&failure.done), ["!refuses\nno such customer", "succeeds"]);
    assert_eq!(
        failure.error.to_string(),
        "handler refuses: no such customer; handler hesitates: not yet"
    );
    let second = next_try(&first, failure);
    let third = next_try(&second, fail(&dispatcher, &second).await);
    let end = fail(&dispatcher, &third).await;

    assert_eq!(end.kind, FailureKind::Reject);
    assert_eq!(
        end.error.to_string(),
        "handler refuses: refused the event in an earlier try: no such customer"
    );
    // Redriven, the event goes to the handler that refused and to no other.
    assert_eq!(names(&end.done), ["succeeds", "hesitates"]);
    assert_eq!(refusals.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_handler_with_fewer_attempts_gives_up_and_leaves_the_others_theirs() {
    let fail_always = |_: OrderPlaced, _: Context| async { Err("no".into()) };
    let dispatcher = Registry::new()
        .on::<OrderPlaced>(
            HandlerOptions::new("once").with_retry(RetryPolicy::none()),
            fail_always,
        )
        .on::<OrderPlaced>("usual", fail_always)
        .build()
        .unwrap();

    let failure = fail(&dispatcher, &order_placed()).await;

    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(names(&failure.done), ["!once\ngave up after 1 attempts: no"]);
    assert_eq!(
        failure.error.to_string(),
        "handler once: gave up after 1 attempts: no; handler usual: no"
    );
}

#[tokio::test]
async fn a_handler_has_its_attempts_also_where_the_relay_gives_fewer() {
    let fail_always = |_: OrderPlaced, _: Context| async { Err("no".into()) };
    let five = RetryPolicy::fixed(5.try_into().unwrap(), Duration::from_secs(1));
    let dispatcher = Registry::new()
        .on::<OrderPlaced>(
            HandlerOptions::new("patient").with_retry(five.clone()),
            fail_always,
        )
        .on::<OrderPlaced>("usual", fail_always)
        .build()
        .unwrap();
    let limits = Limits::new(Duration::from_secs(30), Duration::from_secs(20), 10);
    dispatcher
        .prepare(&limits.with_max_attempts(2.try_into().unwrap()))
        .unwrap();

    let policy = dispatcher.policy(&EventType::new(OrderPlaced::EVENT_TYPE).unwrap());
    let mut second = order_placed();
    second.attempt = 2;
    let failure = fail(&dispatcher, &second).await;

    assert_eq!(policy.retry, Some(five));
    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(names(&failure.done), ["!usual\ngave up after 2 attempts: no"]);
}

#[tokio::test]
async fn outages_are_charged_to_nobody_unless_a_handler_wants_a_retry() {
    let down = |_: OrderPlaced, _: Context| async { Err(HandlerError::outage("ledger is down")) };
    let later = |_: OrderPlaced, _: Context| async {
        Err(HandlerError::retry_after(Duration::from_secs(90), "busy"))
    };
    let outage = Registry::new()
        .on::<OrderPlaced>("a", down)
        .on::<OrderPlaced>("b", succeed);
    let mixed = Registry::new()
        .on::<OrderPlaced>("a", down)
        .on::<OrderPlaced>("b", later);

    let outage = fail(&outage.build().unwrap(), &order_placed()).await;
    let mixed = fail(&mixed.build().unwrap(), &order_placed()).await;

    assert_eq!(
        (outage.kind, names(&outage.done)),
        (FailureKind::Outage, vec!["b"])
    );
    assert_eq!(
        (mixed.kind, mixed.retry_after),
        (FailureKind::Retry, Some(Duration::from_secs(90)))
    );
}

#[tokio::test]
async fn an_undecodable_payload_is_refused_without_being_quoted() {
    let dispatcher = Registry::new()
        .on::<OrderPlaced>("billing", succeed)
        .build()
        .unwrap();

    let failure = fail(&dispatcher, &delivery("OrderPlaced", r#"{"order": "secret"}"#)).await;

    assert_eq!(failure.kind, FailureKind::Reject);
    assert_eq!(
        failure.error.to_string(),
        "handler billing: payload is no `dispatch::OrderPlaced`: expected u64 at line 1 column 18"
    );
}

#[tokio::test]
async fn an_event_that_nobody_handles_follows_the_policy() {
    let with = |unhandled| {
        Registry::new()
            .on::<OrderPlaced>("billing", succeed)
            .unhandled(unhandled)
            .build()
            .unwrap()
    };
    let stranger = delivery("OrderLost", "{}");
    let wait = Duration::from_secs(60);

    let completed = with(Unhandled::Complete).dispatch(&stranger).await.unwrap();
    let failed = fail(&with(Unhandled::Fail), &stranger).await;
    let held = fail(&with(Unhandled::Hold(wait)), &stranger).await;

    assert_eq!(completed, Delivered::Unhandled);
    assert_eq!(failed.kind, FailureKind::Reject);
    assert_eq!(failed.error.to_string(), "no handler for `OrderLost`");
    assert_eq!((held.kind, held.retry_after), (FailureKind::NotTried, Some(wait)));
}

#[tokio::test]
async fn what_handlers_said_holds_after_they_were_removed() {
    let dispatcher = Registry::new()
        .on::<OrderPlaced>("billing", succeed)
        .build()
        .unwrap();
    let mut done = delivery("OrderLost", "{}");
    done.done = Arc::new([PartName::new("mail").unwrap()]);
    let mut refused = done.clone();
    refused.done = Arc::new([PartName::new("!mail").unwrap()]);

    assert_eq!(dispatcher.dispatch(&done).await.unwrap(), Delivered::Handled);
    assert_eq!(fail(&dispatcher, &refused).await.kind, FailureKind::Reject);
}

#[tokio::test]
async fn handlers_share_the_applications_state() {
    struct Ledger(Mutex<Vec<u64>>);
    let ledger = Arc::new(Ledger(Mutex::default()));
    let dispatcher = Registry::new()
        .state(Arc::clone(&ledger))
        .on::<OrderPlaced>("billing", |event: OrderPlaced, ctx: Context| async move {
            let ledger = ctx.state::<Arc<Ledger>>().ok_or("no ledger")?;
            ledger.0.lock().unwrap().push(event.order);
            Ok(())
        })
        .build()
        .unwrap();

    dispatcher.dispatch(&order_placed()).await.unwrap();

    assert_eq!(*ledger.0.lock().unwrap(), [7]);
}
