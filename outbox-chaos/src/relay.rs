//! A process that relays until it is told to end.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox::{
    BoxError, ClaimRequest, ClaimToken, Claimed, Context, HandlerError, HandlerOptions, KeyPolicy, Listening,
    Outcome, PgSource, Position, Registry, Relay, RetryPolicy, Settled, Settlement, Source, SourceError,
    Wakeup,
};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::history::{Ending, History, What};
use crate::{Act, Parking, Scripted};

/// What a relay needs to know.
#[derive(Clone, Serialize, Deserialize)]
pub struct RelayConfig {
    /// Its name in the history.
    pub name: String,
    /// The database.
    pub url: String,
    /// The folder of the history.
    pub folder: PathBuf,
    /// How long its claims last, in milliseconds.
    pub lease_ms: u64,
    /// How many deliveries at a time.
    pub concurrency: u32,
    /// After how many lost lone claims an event is given up.
    pub max_lost: u32,
}

// By hand: the URL holds a password.
impl std::fmt::Debug for RelayConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayConfig")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Relays until `stop` completes. A server that is down at the start is waited for.
///
/// # Errors
/// The history cannot be written, or the configuration cannot work.
pub async fn relay(config: &RelayConfig, stop: impl Future<Output = ()> + Send) -> Result<(), BoxError> {
    let history = History::open(&config.folder, &config.name)?;
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains(AS_SCRIPTED) {
            eprintln!("{info}");
        }
    }));
    let source = loop {
        let builder =
            PgSource::builder(config.url.parse()?).deadline(Duration::from_millis(config.lease_ms / 2));
        match builder.start().await {
            Ok(source) => break source,
            Err(error) => eprintln!("{}: {error}", config.name),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let source = Recorded {
        source,
        history: history.clone(),
    };
    let parked = history.clone();
    let handler = move |event: Scripted, context: Context| handle(history.clone(), event, context);
    let parking = move |event: Parking, context: Context| handle(parked.clone(), event.0, context);
    let dispatcher = Registry::new()
        .on::<Scripted>("scripted", handler)
        .on::<Parking>(HandlerOptions::new("parking").with_key(KeyPolicy::Park), parking)
        .build()?;
    let relay = Relay::builder(Arc::new(source), Arc::new(dispatcher))
        .lease(Duration::from_millis(config.lease_ms))
        .handler_timeout(Duration::from_millis(config.lease_ms - 1))
        .concurrency(NonZeroU32::new(config.concurrency).ok_or("concurrency is 0")?)
        .max_lost(NonZeroU32::new(config.max_lost).ok_or("max_lost is 0")?)
        .retry(RetryPolicy::fixed(
            NonZeroU32::new(10).ok_or("0 attempts")?,
            Duration::from_millis(50),
        ))
        .shutdown_grace(Duration::from_secs(2))
        .build()?;
    let report = relay.run_until(stop).await?;
    eprintln!("{}: {report:?}", config.name);
    Ok(())
}

/// What handlers say that fail because their script wants it.
const AS_SCRIPTED: &str = "as the script wants";

/// Writes down that a handler was dropped before it was over.
struct Open {
    history: History,
    event: Uuid,
    over: bool,
}

impl Open {
    fn end(mut self, how: Ending) -> Result<(), HandlerError> {
        self.over = true;
        Ok(self.history.write(What::Ended {
            event: self.event,
            how,
        })?)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.history.write(What::Ended {
                event: self.event,
                how: Ending::CutOff,
            });
        }
    }
}

async fn handle(history: History, event: Scripted, context: Context) -> Result<(), HandlerError> {
    let id = context.event_id().as_uuid();
    let payload = context.envelope().payload.as_str().to_owned();
    history.write(What::Started {
        event: id,
        attempt: context.attempt(),
        payload,
    })?;
    let open = Open {
        history,
        event: id,
        over: false,
    };
    match event.act {
        Act::Take(0) => {}
        Act::Take(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
        Act::Fail(times) if context.attempt() <= times => {
            open.end(Ending::Failed)?;
            return Err(HandlerError::retry(AS_SCRIPTED));
        }
        Act::Panic(times) if context.attempt() <= times => {
            open.end(Ending::Failed)?;
            panic!("{AS_SCRIPTED}");
        }
        Act::Reject if context.headers().get("redriven").is_none() => {
            open.end(Ending::Failed)?;
            return Err(HandlerError::reject(AS_SCRIPTED));
        }
        Act::Fail(_) | Act::Panic(_) | Act::Reject => {}
        Act::Abort => std::process::abort(),
    }
    open.end(Ending::Done)
}

/// A source that writes down what the store has confirmed.
struct Recorded {
    source: PgSource,
    history: History,
}

#[async_trait]
impl Source for Recorded {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        self.source.claim(request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        let settled = self.source.settle(settlements.clone()).await?;
        for settlement in settlements {
            if settled.lost.contains(&(settlement.token, settlement.position)) {
                continue;
            }
            let outcome = match settlement.outcome {
                Outcome::Completed => "completed",
                Outcome::Retry { .. } => "retry",
                Outcome::Failed { .. } => "failed",
                Outcome::Released { .. } => "released",
            };
            let what = What::Settled {
                event: settlement.id.as_uuid(),
                outcome: outcome.to_owned(),
            };
            self.history
                .write(what)
                .map_err(|error| SourceError::unavailable("write the history", error))?;
        }
        Ok(settled)
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        self.source.extend(tokens, lease).await
    }

    async fn paused(&self, tokens: &[ClaimToken]) -> Result<Vec<(ClaimToken, Position)>, SourceError> {
        self.source.paused(tokens).await
    }

    async fn wait(&self, timeout: Duration) -> Wakeup {
        self.source.wait(timeout).await
    }

    fn listening(&self) -> Listening {
        self.source.listening()
    }
}
