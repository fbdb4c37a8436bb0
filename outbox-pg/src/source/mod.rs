//! The source on Postgres: claims by a ledger, woken by LISTEN, or by polling alone.

mod builder;
mod claim;
mod ears;
mod listener;
mod mark;
mod pace;
mod reach;
mod session;
mod settle;
mod sight;
mod sleeper;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    ClaimRequest, ClaimToken, Claimed, Listening, Position, Settled, Settlement, Source, SourceError, Wakeup,
};
use sqlx::Row;
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use uuid::Uuid;

pub use self::builder::{PgSourceBuilder, StartError};
use self::claim::Claim;
use self::ears::{Ears, Hearing};
use self::listener::{POLL_MAX, POLL_MIN};
use self::mark::Flow;
use self::session::Sessions;
use self::settle::Settle;
use self::sight::Sight;
use crate::sql::Sql;

/// So long after it last found something, a sleeping relay looks now and then although nothing was heard.
const LIVELY: Duration = Duration::from_secs(1);
const POLL_LIVELY: Duration = Duration::from_millis(20);

/// The outbox on Postgres as a [`Source`].
///
/// Keeps a small pool of its own, a connection that listens, and two background tasks; all end when it is dropped.
/// One relay uses one source.
#[derive(Debug)]
pub struct PgSource {
    /// For claims.
    claims: Sessions,
    /// For settlements: as many as a relay makes at a time.
    settlements: Sessions,
    /// For extensions, which must not wait for those.
    extensions: Sessions,
    /// For the rest.
    sessions: Sessions,
    claim: Claim,
    settle: Settle,
    extend: Sql,
    paused: Sql,
    /// Tells the leases of this relay from those of others.
    worker: Uuid,
    ears: Arc<Ears>,
    /// What was claimed, for the mark to follow.
    flow: Arc<Flow>,
    sight: Sight,
    fallback: Duration,
    _tasks: JoinSet<()>,
}

impl PgSource {
    /// Starts building a source for the database that these options lead to.
    #[must_use]
    pub fn builder(options: PgConnectOptions) -> PgSourceBuilder {
        PgSourceBuilder::new(options)
    }

    /// How long to sleep before the next look, if nothing is heard.
    fn pause(&self) -> Duration {
        // The longer nothing was found, the longer the pause: a tenth of the silence.
        let growing = (self.ears.quiet_for() / 10).max(POLL_MIN);
        match self.ears.hearing() {
            // Where events come, a notification that is lost costs no more than this.
            Hearing::Asleep if self.ears.quiet_for() < LIVELY => POLL_LIVELY,
            Hearing::Asleep => Duration::MAX,
            Hearing::Awake => growing.min(POLL_MAX),
            Hearing::Down | Hearing::Unsure | Hearing::PollOnly => growing.min(self.fallback),
        }
    }
}

#[async_trait]
impl Source for PgSource {
    async fn claim(&self, request: ClaimRequest) -> Result<Vec<Claimed>, SourceError> {
        let (claim, worker) = (self.claim.clone(), self.worker);
        let surely = self.ears.full();
        let (room, bytes_max) = (request.max_events.get() as usize, request.max_bytes);
        let every_type = request.excluded_types.is_empty();
        self.ears.look();
        let claimed = self
            .claims
            .run("claim", |connection| {
                Box::pin(async move { claim.run(connection, worker, request, surely).await })
            })
            .await
            .inspect_err(|_| self.ears.failed())?;
        let full = claimed.len() >= room;
        let heavy = size(&claimed) > bytes_max / 2;
        self.ears.claimed(claimed.len(), full, every_type && !heavy);
        self.flow.claimed(claimed.len());
        if claimed.is_empty() {
            let seen = self.sight.check(&self.sessions).await;
            seen.inspect_err(|_| self.ears.failed())?;
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Settled, SourceError> {
        if settlements.is_empty() {
            return Ok(Settled::all());
        }
        let settle = self.settle.clone();
        self.settlements
            .run("settle", |connection| {
                Box::pin(async move { settle.run(connection, settlements).await })
            })
            .await
    }

    async fn extend(&self, tokens: &[ClaimToken], lease: Duration) -> Result<Vec<ClaimToken>, SourceError> {
        let (numbers, secrets) = halves(tokens);
        let extend = self.extend.clone();
        let lost: Vec<i64> = self
            .extensions
            .run("extend", |connection| {
                Box::pin(async move {
                    let query = extend
                        .query()
                        .bind(numbers)
                        .bind(secrets)
                        .bind(lease.as_millis() as f64);
                    query.fetch_one(connection).await?.try_get(0)
                })
            })
            .await?;
        Ok(tokens
            .iter()
            .filter(|token| lost.contains(&token.number()))
            .copied()
            .collect())
    }

    async fn paused(&self, tokens: &[ClaimToken]) -> Result<Vec<(ClaimToken, Position)>, SourceError> {
        let (numbers, secrets) = halves(tokens);
        let paused = self.paused.clone();
        let rows = self
            .sessions
            .run("paused", |connection| {
                Box::pin(async move {
                    let rows = paused
                        .query()
                        .bind(numbers)
                        .bind(secrets)
                        .fetch_all(connection)
                        .await?;
                    let both = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
                    both.collect::<Result<Vec<(i64, i64)>, sqlx::Error>>()
                })
            })
            .await?;
        let token_of = |number| tokens.iter().find(|token| token.number() == number).copied();
        Ok(rows
            .into_iter()
            .filter_map(|(number, seq)| Some((token_of(number)?, Position(seq))))
            .collect())
    }

    async fn wait(&self, limit: Duration) -> Wakeup {
        let pause = self.pause().min(limit);
        match tokio::time::timeout(pause, self.ears.hint.notified()).await {
            Ok(()) => Wakeup::Hint,
            Err(_) if pause < limit => Wakeup::Hint,
            Err(_) => Wakeup::Timeout,
        }
    }

    fn listening(&self) -> Listening {
        match self.ears.hearing() {
            Hearing::PollOnly => Listening::PollOnly,
            Hearing::Down => Listening::Down,
            Hearing::Awake | Hearing::Asleep | Hearing::Unsure => Listening::Up,
        }
    }
}

/// The bytes of what could be read.
fn size(claimed: &[Claimed]) -> u64 {
    let envelopes = claimed.iter().filter_map(|event| event.envelope.as_ref().ok());
    envelopes.map(|envelope| envelope.size() as u64).sum()
}

/// Tokens as lists that run side by side: numbers and secrets.
fn halves(tokens: &[ClaimToken]) -> (Vec<i64>, Vec<i64>) {
    tokens
        .iter()
        .map(|token| (token.number(), token.secret()))
        .unzip()
}
