//! What goes wrong in a run.

use std::fmt;
use std::time::Duration;

use outbox::BoxError;
use outbox_dev::{Mode, Stop};
use sqlx::{Connection, PgConnection};

use super::cast::{Cast, LEASE};
use super::operator;
use crate::history::What;

/// One kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Kill,
    Pause,
    Terminate,
    RestartFast,
    RestartImmediate,
    NetworkDown,
    BlackHole,
    RepliesLost,
    CommitReplyLost,
    Redrive,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "a relay killed (SIGKILL), another one started",
            Self::Pause => "a relay held still for longer than its lease (SIGSTOP, SIGCONT)",
            Self::Terminate => "all sessions of relays terminated",
            Self::RestartFast => "Postgres restarted (fast)",
            Self::RestartImmediate => "Postgres crashed and recovered (immediate)",
            Self::NetworkDown => "connections of relays cut, new ones refused",
            Self::BlackHole => "packets of relays swallowed",
            Self::RepliesLost => "replies to relays lost after the work was done, then the connections",
            Self::CommitReplyLost => "the reply to a publisher's COMMIT lost",
            Self::Redrive => "failed events redriven",
        })
    }
}

impl Fault {
    pub(super) fn any(random: &mut fastrand::Rng) -> Self {
        match random.u32(0..20) {
            0..5 => Self::Kill,
            5..8 => Self::Pause,
            8..10 => Self::Terminate,
            10 => Self::RestartFast,
            11 => Self::RestartImmediate,
            12 => Self::NetworkDown,
            13 => Self::BlackHole,
            14 => Self::RepliesLost,
            15..18 => Self::CommitReplyLost,
            _ => Self::Redrive,
        }
    }
}

/// Does it, and waits until it is over.
pub(super) async fn strike(
    cast: &mut Cast,
    fault: Fault,
    random: &mut fastrand::Rng,
) -> Result<(), BoxError> {
    match fault {
        Fault::Kill => kill(cast, random),
        Fault::Pause => pause(cast, random).await,
        Fault::CommitReplyLost => {
            cast.publisher_proxy.set(Mode::CutReplyTo(b"COMMIT".to_vec()));
            Ok(())
        }
        Fault::Redrive => {
            let mut connection = PgConnection::connect(cast.database.url()).await?;
            operator::redrive(&mut connection, &cast.history).await?;
            Ok(())
        }
        _ => {
            let victim = "*".to_owned();
            cast.history.write(What::Faulted {
                victim: victim.clone(),
                fault: fault.to_string(),
            })?;
            for_everybody(cast, fault, random).await?;
            Ok(cast.history.write(What::Healed { victim })?)
        }
    }
}

async fn for_everybody(cast: &mut Cast, fault: Fault, random: &mut fastrand::Rng) -> Result<(), BoxError> {
    let proxy = &cast.relay_proxy;
    let a_while = Duration::from_millis(random.u64(300..3_000));
    match fault {
        Fault::Terminate => {
            let mut connection = PgConnection::connect(cast.database.url()).await?;
            let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE application_name = 'outbox-relay' AND datname = current_database()";
            sqlx::raw_sql(terminate).execute(&mut connection).await?;
        }
        Fault::RestartFast => cast.server.restart(Stop::Fast).await?,
        Fault::RestartImmediate => cast.server.restart(Stop::Immediate).await?,
        Fault::NetworkDown => {
            proxy.set(Mode::Down);
            tokio::time::sleep(a_while).await;
        }
        Fault::BlackHole => {
            proxy.set(Mode::BlackHole);
            tokio::time::sleep(a_while).await;
        }
        Fault::RepliesLost => {
            proxy.set(Mode::DropReplies);
            tokio::time::sleep(a_while).await;
            // A connection whose replies were lost is of no more use.
            proxy.set(Mode::Down);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Fault::Kill | Fault::Pause | Fault::CommitReplyLost | Fault::Redrive => {}
    }
    proxy.set(Mode::Forward);
    Ok(())
}

fn any_relay(cast: &Cast, random: &mut fastrand::Rng) -> Result<String, BoxError> {
    let name = cast.relays.keys().nth(random.usize(..cast.relays.len()));
    Ok(name.ok_or("no relay is left")?.clone())
}

fn kill(cast: &mut Cast, random: &mut fastrand::Rng) -> Result<(), BoxError> {
    let victim = any_relay(cast, random)?;
    // Written down first: the kernel takes its time.
    cast.history.write(What::Faulted {
        victim: victim.clone(),
        fault: Fault::Kill.to_string(),
    })?;
    if let Some(relay) = cast.relays.remove(&victim) {
        relay.kill()?;
    }
    cast.history.write(What::Healed { victim })?;
    cast.start_relay()
}

async fn pause(cast: &mut Cast, random: &mut fastrand::Rng) -> Result<(), BoxError> {
    let victim = any_relay(cast, random)?;
    let Some(relay) = cast.relays.get(&victim) else {
        return Ok(());
    };
    cast.history.write(What::Faulted {
        victim: victim.clone(),
        fault: Fault::Pause.to_string(),
    })?;
    relay.pause()?;
    tokio::time::sleep(LEASE.mul_f64(1.1 + random.f64() / 2.0)).await;
    relay.resume()?;
    Ok(cast.history.write(What::Healed { victim })?)
}
