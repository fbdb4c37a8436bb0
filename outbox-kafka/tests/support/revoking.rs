//! Stops the polling thread of a source at the moment when it begins to give partitions up.

use std::fmt;
use std::sync::{Mutex, mpsc};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A polling thread that waits in its revocation until this is dropped.
pub(crate) struct Held(#[expect(dead_code, reason = "its end is what counts")] mpsc::Sender<()>);

/// Sees what the source says, as it says it.
struct Watch {
    topic: String,
    tell: Mutex<Option<mpsc::Sender<Held>>>,
}

/// Holds the next polling thread that gives partitions of this topic up, and tells when it does. Once per process.
pub(crate) fn next(topic: &str) -> mpsc::Receiver<Held> {
    let (tell, told) = mpsc::channel();
    let watch = Watch {
        topic: topic.to_owned(),
        tell: Mutex::new(Some(tell)),
    };
    tracing::subscriber::set_global_default(watch).unwrap();
    told
}

#[derive(Default)]
struct Said(String);

impl Visit for Said {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{value:?} ");
    }
}

impl Subscriber for Watch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("outbox_kafka::source")
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        let revoked = said.0.contains("partitions revoked") && said.0.contains(&self.topic);
        if revoked && let Some(tell) = self.tell.lock().unwrap().take() {
            let (held, until_dropped) = mpsc::channel();
            tell.send(Held(held)).unwrap();
            // An error: dropped.
            until_dropped.recv().unwrap_err();
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
