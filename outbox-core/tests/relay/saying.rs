//! What a relay writes to the log. The lines are API: people search for them.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::Relay;
use outbox_core::telemetry::log_line;
use tracing_subscriber::fmt::MakeWriter;

use crate::world::{Faults, Faulty, Scripted, event, source};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// How often a line was written by now.
    fn count(&self, line: &str) -> usize {
        let log = self.0.lock().unwrap();
        String::from_utf8_lossy(&log).matches(line).count()
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

/// Everything that is logged on this thread, and all of a test is on one thread.
fn listen() -> (Log, tracing::subscriber::DefaultGuard) {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_ansi(false)
        .finish();
    (log, tracing::subscriber::set_default(subscriber))
}

#[tokio::test(start_paused = true)]
async fn each_cause_of_a_streak_of_failures_is_said_once() {
    let (log, _guard) = listen();
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let relay = Relay::builder(faulty.clone(), Arc::new(Scripted::default()))
        .build()
        .unwrap()
        .spawn();
    let (well, down) = (
        Faults::none(),
        Faults {
            fail: true,
            ..Faults::none()
        },
    );
    let hanging = Faults {
        hang_claim: true,
        ..well
    };

    for (faults, said) in [(down, 1), (hanging, 2), (down, 2), (well, 2), (down, 3)] {
        faulty.set(faults);
        tokio::time::sleep(Duration::from_secs(120)).await;

        assert_eq!(log.count(log_line::POLL_FAILED), said, "{faults:?}");
    }

    relay.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_cannot_be_recorded_are_said_once_for_each_cause() {
    let (log, _guard) = listen();
    let memory = source();
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let relay = Relay::builder(faulty.clone(), Arc::new(Scripted::default()))
        .build()
        .unwrap()
        .spawn();
    let failing = Faults {
        fail_settle: true,
        ..Faults::none()
    };
    let hanging = Faults {
        hang_settle: true,
        ..Faults::none()
    };
    memory.publish_envelope(event("Plain"));

    for (faults, said) in [(failing, 1), (hanging, 2), (failing, 2)] {
        faulty.set(faults);
        tokio::time::sleep(Duration::from_secs(120)).await;

        assert_eq!(log.count(log_line::SETTLE_FAILED), said, "{faults:?}");
    }

    faulty.set(Faults::none());
    relay.shutdown().await.unwrap();
}
