//! Handlers that panic, hang or ignore being called off harm nobody else.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use jiff::Timestamp;
use outbox_core::{
    Context, Delivery, Dispatcher, Envelope, Event, EventId, EventType, Failure, FailureKind, Handler,
    HandlerError, PartName, Payload,
};
use outbox_inproc::{HandlerOptions, Registry, WIND_DOWN};
use tokio::time::Instant;

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct OrderPlaced {}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

const FIVE_SECONDS: Duration = Duration::from_secs(5);

fn order_placed() -> Delivery {
    let envelope = Envelope::new(
        EventId::new(),
        EventType::new("OrderPlaced").unwrap(),
        Payload::from_json("{}"),
        Timestamp::UNIX_EPOCH,
    );
    Delivery::new(Arc::new(envelope), Instant::now() + Duration::from_secs(20))
}

/// Delivers an event to the handler and to a sibling that must come through.
async fn beside_a_sibling(options: HandlerOptions, handler: impl Handler<OrderPlaced>) -> Failure {
    let dispatcher = Registry::new()
        .on::<OrderPlaced>(options, handler)
        .on::<OrderPlaced>("sibling", |_: OrderPlaced, _: Context| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(())
        })
        .build()
        .unwrap();
    let failure = dispatcher.dispatch(&order_placed()).await.unwrap_err();
    assert_eq!(
        failure.done.iter().map(PartName::as_str).collect::<Vec<_>>(),
        ["sibling"]
    );
    failure
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_that_handler_only() {
    let at_once =
        |_: OrderPlaced, _: Context| -> std::future::Ready<Result<(), HandlerError>> { panic!("no future") };
    let later = |_: OrderPlaced, _: Context| async {
        tokio::task::yield_now().await;
        panic!("boom {}", 1)
    };

    let at_once = beside_a_sibling("bad".into(), at_once).await;
    let later = beside_a_sibling("bad".into(), later).await;

    assert_eq!(
        (at_once.kind, later.kind),
        (FailureKind::Retry, FailureKind::Retry)
    );
    assert_eq!(at_once.error.to_string(), "handler bad: panicked: no future");
    assert_eq!(later.error.to_string(), "handler bad: panicked: boom 1");
}

struct PanicsInDrop;

impl Drop for PanicsInDrop {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_drop_of_a_hanging_handler_is_reported() {
    let options = HandlerOptions::new("bad").with_timeout(FIVE_SECONDS);

    let failure = beside_a_sibling(options, |_: OrderPlaced, _: Context| async {
        let _bomb = PanicsInDrop;
        std::future::pending().await
    })
    .await;

    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(
        failure.error.to_string(),
        "handler bad: timed out after 5s; panicked in drop: dropped"
    );
}

#[tokio::test]
async fn a_panic_in_drop_of_a_finished_future_leaves_its_result() {
    struct Finished(PanicsInDrop);
    impl Future for Finished {
        type Output = Result<(), HandlerError>;
        fn poll(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Self::Output> {
            let _ = &self.0;
            Poll::Ready(Ok(()))
        }
    }
    let dispatcher = Registry::new()
        .on::<OrderPlaced>("bad", |_: OrderPlaced, _: Context| Finished(PanicsInDrop))
        .build()
        .unwrap();

    assert!(dispatcher.dispatch(&order_placed()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_delivery_survives_a_panic_in_drop() {
    let dispatcher = Registry::new()
        .on::<OrderPlaced>("bad", |_: OrderPlaced, _: Context| async {
            let _bomb = PanicsInDrop;
            std::future::pending().await
        })
        .build()
        .unwrap();
    let delivery = order_placed();

    let outcome = tokio::time::timeout(Duration::from_secs(1), dispatcher.dispatch(&delivery)).await;

    assert!(outcome.is_err());
}

#[derive(Debug)]
struct PanicsInDisplay;

impl fmt::Display for PanicsInDisplay {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no words")
    }
}

impl std::error::Error for PanicsInDisplay {}

#[tokio::test(start_paused = true)]
async fn a_panic_in_display_of_the_error_is_a_failure_with_a_text() {
    let failure = beside_a_sibling("bad".into(), |_: OrderPlaced, _: Context| async {
        Err(PanicsInDisplay.into())
    })
    .await;

    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(
        failure.error.to_string(),
        "handler bad: error that cannot be shown, its display panicked: no words"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_ignores_its_timeout_is_dropped() {
    let options = HandlerOptions::new("slow").with_timeout(FIVE_SECONDS);
    let started = Instant::now();

    let failure = beside_a_sibling(options, |_: OrderPlaced, _: Context| std::future::pending()).await;

    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(failure.error.to_string(), "handler slow: timed out after 5s");
    assert!(started.elapsed() <= FIVE_SECONDS + WIND_DOWN + Duration::from_millis(5));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_heeds_its_timeout_says_how_it_ended() {
    let options = HandlerOptions::new("slow").with_timeout(FIVE_SECONDS);
    let tidied = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&tidied);

    let failure = beside_a_sibling(options, move |_: OrderPlaced, ctx: Context| {
        let tidied = Arc::clone(&tidied);
        async move {
            ctx.cancelled().cancelled().await;
            tidied.store(true, Ordering::Relaxed);
            Err("at page 3 of 9".into())
        }
    })
    .await;

    assert!(seen.load(Ordering::Relaxed));
    assert_eq!(
        failure.error.to_string(),
        "handler slow: timed out after 5s: at page 3 of 9"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_a_timeout_ends_at_the_deadline_of_the_delivery() {
    let failure = beside_a_sibling("slow".into(), |_: OrderPlaced, _: Context| std::future::pending()).await;

    assert_eq!(failure.error.to_string(), "handler slow: timed out after 20s");
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_called_off_keeps_what_was_done_and_charges_nothing() {
    let dispatcher = Registry::new()
        .on::<OrderPlaced>("quick", |_: OrderPlaced, _: Context| async { Ok(()) })
        .on::<OrderPlaced>("hangs", |_: OrderPlaced, _: Context| std::future::pending())
        .on::<OrderPlaced>("obeys", |_: OrderPlaced, ctx: Context| async move {
            ctx.cancelled().cancelled().await;
            Err("stopped".into())
        })
        .build()
        .unwrap();
    let delivery = order_placed();
    let cancelled = delivery.cancelled.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(3)).await;
        cancelled.cancel();
    });

    let failure = dispatcher.dispatch(&delivery).await.unwrap_err();
    let again = dispatcher.dispatch(&delivery).await.unwrap_err();

    assert_eq!(failure.kind, FailureKind::NotTried);
    assert_eq!(failure.done, [PartName::new("quick").unwrap()]);
    assert_eq!(
        failure.error.to_string(),
        "handler hangs: called off before it had ended; handler obeys: called off before it had ended: stopped"
    );
    assert_eq!((again.kind, again.done.len()), (FailureKind::NotTried, 0));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_fires_its_own_token_calls_off_nobody() {
    let failure = beside_a_sibling("guarded".into(), |_: OrderPlaced, ctx: Context| async move {
        let _guard = ctx.cancelled().clone().drop_guard();
        tokio::task::yield_now().await;
        Err("no".into())
    })
    .await;

    assert_eq!(failure.kind, FailureKind::Retry);
    assert_eq!(failure.error.to_string(), "handler guarded: no");
}
