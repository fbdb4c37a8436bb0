//! What a dispatcher writes to the log. The lines are API: people search for them.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::{
    Context, Delivery, Dispatcher, Envelope, Event, EventId, EventType, HandlerError, Limits, Payload,
};
use outbox_inproc::{InProcDispatcher, Registry};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Runs with everything that is logged going here.
    fn during(&self, run: impl FnOnce()) {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(self.clone())
            .with_ansi(false)
            .finish();
        tracing::subscriber::with_default(subscriber, run);
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
struct OrderPlaced {}

impl Event for OrderPlaced {
    const EVENT_TYPE: &'static str = "OrderPlaced";
}

fn dispatcher() -> InProcDispatcher {
    let handler = |_: OrderPlaced, _: Context| async { Ok::<(), HandlerError>(()) };
    Registry::new()
        .on::<OrderPlaced>("billing", handler)
        .on::<OrderPlaced>("mail", handler)
        .build()
        .unwrap()
}

fn stranger(event_type: &str) -> Delivery {
    let envelope = Envelope::new(
        EventId::new(),
        EventType::new(event_type).unwrap(),
        Payload::from_json(r#""secret""#),
        jiff::Timestamp::UNIX_EPOCH,
    );
    Delivery::new(
        Arc::new(envelope),
        tokio::time::Instant::now() + Duration::from_secs(20),
    )
}

#[test]
fn the_start_line_counts_the_handlers_of_each_event_type() {
    let log = Log::default();
    let limits = Limits::new(Duration::from_secs(30), Duration::from_secs(20), 100);

    log.during(|| dispatcher().prepare(&limits).unwrap());

    let text = log.text();
    let line = r#"outbox_dispatcher_starting handler_counts={"OrderPlaced": 2}"#;
    assert!(text.contains("INFO") && text.contains(line), "{text}");
}

#[test]
fn each_unhandled_type_is_warned_about_once() {
    let log = Log::default();
    let dispatcher = dispatcher();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

    log.during(|| {
        runtime.block_on(async {
            for event_type in ["OrderLost", "OrderLost", "OrderFound", "OrderLost"] {
                dispatcher.dispatch(&stranger(event_type)).await.unwrap();
            }
        });
    });

    let text = log.text();
    assert_eq!(text.matches("WARN").count(), 2, "{text}");
    for event_type in ["OrderLost", "OrderFound"] {
        assert_eq!(text.matches(event_type).count(), 1, "{text}");
    }
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn types_from_outside_cannot_fill_memory_or_log() {
    let log = Log::default();
    let dispatcher = dispatcher();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();

    log.during(|| {
        runtime.block_on(async {
            for n in 0..1_500 {
                dispatcher
                    .dispatch(&stranger(&format!("Stranger{n}")))
                    .await
                    .unwrap();
            }
        });
    });

    assert_eq!(log.text().matches("WARN").count(), 1_000);
}
