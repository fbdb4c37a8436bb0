//! A process that publishes until it is told to end.

use std::path::PathBuf;
use std::time::Duration;

use outbox::{BoxError, Event, Names, NewEvent, PgPublisher};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use crate::history::{History, Policy, What};
use crate::{Act, Parking, Scripted};

/// What a publisher needs to know.
#[derive(Clone, Serialize, Deserialize)]
pub struct PublisherConfig {
    /// Its name in the history, and in its keys.
    pub name: String,
    /// The database.
    pub url: String,
    /// The folder of the history.
    pub folder: PathBuf,
    /// Every choice follows from it.
    pub seed: u64,
    /// How many transactions to try; 0: until its input ends.
    pub transactions: u64,
    /// How long to pause between two transactions, in milliseconds.
    pub pause_ms: u64,
    /// Whether some events fail for good, for somebody to redrive.
    pub rejects: bool,
    /// How keys are spread.
    pub keys: Keys,
}

/// Which ordering keys a publisher gives to its events.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Keys {
    /// Half of the events have one of twenty.
    Some,
    /// Every event has one. Of so many, the first is hot: it gets a fifth of the events, and some of them take long. Every
    /// other key parks behind an event that failed for good.
    Skewed(u32),
}

// By hand: the URL holds a password.
impl std::fmt::Debug for PublisherConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublisherConfig")
            .field("name", &self.name)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// How a transaction is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Plan {
    Commit,
    RollBack,
    /// All but the last event are in a savepoint that is rolled back.
    Savepoint,
}

/// Publishes until all transactions were tried, or for ever. Trouble with the database is written down and gone through.
///
/// # Errors
/// The history cannot be written.
pub async fn publish(config: &PublisherConfig) -> Result<(), BoxError> {
    let history = History::open(&config.folder, &config.name)?;
    let mut random = fastrand::Rng::with_seed(config.seed);
    let mut connection = None;
    let mut n = 0;
    for _ in 0..match config.transactions {
        0 => u64::MAX,
        some => some,
    } {
        tokio::time::sleep(Duration::from_millis(config.pause_ms)).await;
        let plan = match random.u32(0..10) {
            0 => Plan::RollBack,
            1 => Plan::Savepoint,
            _ => Plan::Commit,
        };
        let events: Vec<NewEvent> = (0..random.u64(1..6))
            .map(|_| {
                n += 1;
                event(script(config, n, &mut random), config)
            })
            .collect::<Result<_, _>>()?;
        if connection.is_none() {
            // A server that is down is tried again; one that swallows packets, too.
            let connecting = tokio::time::timeout(Duration::from_secs(3), PgConnection::connect(&config.url));
            connection = connecting.await.ok().and_then(Result::ok);
        }
        let Some(usable) = connection.as_mut() else {
            continue;
        };
        for event in &events {
            let ends = event.payload.decode::<Scripted>()?.ends().to_owned();
            let policy = match event.event_type.as_str() {
                <Parking as Event>::EVENT_TYPE => Policy::Park,
                _ => Policy::GoOn,
            };
            let key = event.ordering_key.as_ref().map(ToString::to_string);
            let payload = event.payload.as_str().to_owned();
            history.write(What::Intended {
                event: event.id.as_uuid(),
                payload,
                key,
                ends,
                policy,
                delayed: false,
            })?;
        }
        if !transaction(usable, &events, plan, &history).await? {
            connection = None;
        }
    }
    Ok(())
}

fn script(config: &PublisherConfig, n: u64, random: &mut fastrand::Rng) -> Scripted {
    // Keys belong to one publisher, whose transactions come one after the other: so their order is that of the table.
    let (key, hot) = match config.keys {
        Keys::Some => (random.bool().then(|| random.u32(0..20)), false),
        Keys::Skewed(keys) => {
            let hot = random.u32(0..5) == 0;
            (Some(if hot { 0 } else { random.u32(0..keys) }), hot)
        }
    };
    let act = match random.u32(0..40) {
        _ if hot && random.u32(0..150) == 0 => Act::Take(1_200),
        0..5 if matches!(config.keys, Keys::Some) => Act::Take(random.u64(50..400)),
        0 => Act::Take(random.u64(20..60)),
        5 => Act::Fail(random.u32(1..3)),
        6 => Act::Panic(1),
        7 if config.rejects => Act::Reject,
        _ => Act::Take(random.u64(0..5)),
    };
    let key = key.map(|key| format!("{}-{key}", config.name));
    Scripted { n, act, key }
}

fn event(scripted: Scripted, config: &PublisherConfig) -> Result<NewEvent, BoxError> {
    let number = scripted
        .key
        .as_deref()
        .and_then(|key| key.rsplit('-').next()?.parse::<u32>().ok());
    let parks = matches!(config.keys, Keys::Skewed(_)) && number.is_some_and(|number| number % 2 == 1);
    Ok(if parks {
        NewEvent::of(&Parking(scripted))?
    } else {
        NewEvent::of(&scripted)?
    })
}

/// One transaction, and what became of it. Whether the connection can be used further.
async fn transaction(
    connection: &mut PgConnection,
    events: &[NewEvent],
    plan: Plan,
    history: &History,
) -> Result<bool, BoxError> {
    let ids: Vec<Uuid> = events.iter().map(|event| event.id.as_uuid()).collect();
    let kept = match plan {
        Plan::Commit => &ids[..],
        Plan::RollBack => &[],
        Plan::Savepoint => &ids[ids.len() - 1..],
    };
    // Longer than any fault lasts would only mean a longer run.
    let patience = Duration::from_secs(5);
    let written = tokio::time::timeout(patience, write(connection, events, plan)).await;
    let Ok(Ok(transaction)) = written else {
        for event in ids {
            history.write(What::RolledBack { event })?;
        }
        return Ok(false);
    };
    if plan == Plan::RollBack {
        let ended = tokio::time::timeout(patience, transaction.rollback()).await;
        for event in ids {
            history.write(What::RolledBack { event })?;
        }
        return Ok(matches!(ended, Ok(Ok(()))));
    }
    let committed = matches!(
        tokio::time::timeout(patience, transaction.commit()).await,
        Ok(Ok(()))
    );
    for event in ids.iter().copied() {
        history.write(match (kept.contains(&event), committed) {
            (false, _) => What::RolledBack { event },
            (true, true) => What::Committed { event },
            (true, false) => What::Unknown { event },
        })?;
    }
    Ok(committed)
}

async fn write<'c>(
    connection: &'c mut PgConnection,
    events: &[NewEvent],
    plan: Plan,
) -> Result<sqlx::Transaction<'c, sqlx::Postgres>, BoxError> {
    let publisher = PgPublisher::new(&Names::default());
    let mut transaction = connection.begin().await?;
    match (plan, events.split_last()) {
        (Plan::Savepoint, Some((last, dropped))) => {
            let mut savepoint = transaction.begin().await?;
            publisher.publish_all(&mut savepoint, dropped.to_vec()).await?;
            savepoint.rollback().await?;
            publisher.publish(&mut transaction, last.clone()).await?;
        }
        _ => {
            publisher.publish_all(&mut transaction, events.to_vec()).await?;
        }
    }
    Ok(transaction)
}
