//! Setting up a source.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{ConfigError, SourceError};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Row};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::PgSource;
use super::claim::Claim;
use super::ears::{Ears, Hearing};
use super::listener::Listener;
use super::mark::{Flow, Marker};
use super::reach::reach;
use super::session::{Sessions, Slow};
use super::settle::Settle;
use super::sight::Sight;
use crate::error::source_error;
use crate::sql::Sql;
use crate::{MigrateError, Names, Rights, check_version};

/// Sets up a [`PgSource`].
#[derive(Clone)]
pub struct PgSourceBuilder {
    options: PgConnectOptions,
    names: Names,
    poll_only: bool,
    pooler: bool,
    fallback: Duration,
    deadline: Duration,
    asynchronous: bool,
    delete: bool,
}

// By hand: the connection options show the password.
impl std::fmt::Debug for PgSourceBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgSourceBuilder")
            .field("host", &self.options.get_host())
            .field("database", &self.options.get_database())
            .field("names", &self.names)
            .field("poll_only", &self.poll_only)
            .field("pooler", &self.pooler)
            .finish_non_exhaustive()
    }
}

/// A source could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The schema is missing, too old or too new.
    #[error(transparent)]
    Schema(#[from] MigrateError),
    /// The role may not do what a relay has to do.
    #[error("role {role} lacks {}; let the owner of the tables run: {remedy}", .missing.join(", "))]
    Rights {
        /// The role that the relay connects as.
        role: String,
        /// The privileges.
        missing: Vec<String>,
        /// The statement that grants them.
        remedy: String,
    },
    /// The role may not see every event, so it would deliver only some and never know.
    #[error(
        "role {role} cannot see the events of every tenant in {table}; let the owner of the tables run: {remedy}, or give the role BYPASSRLS"
    )]
    Blind {
        /// The role that the relay connects as.
        role: String,
        /// The outbox.
        table: String,
        /// The statement that makes a policy for it.
        remedy: String,
    },
    /// The database cannot be reached or refuses.
    #[error("the outbox cannot be used")]
    Source(#[from] SourceError),
}

impl PgSourceBuilder {
    pub(super) fn new(options: PgConnectOptions) -> Self {
        Self {
            options,
            names: Names::default(),
            poll_only: false,
            pooler: false,
            fallback: Duration::from_millis(250),
            deadline: Duration::from_secs(10),
            asynchronous: false,
            delete: false,
        }
    }

    /// Sets where the outbox lives. Defaults to `outbox.outbox`.
    #[must_use]
    pub fn names(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Does without LISTEN: the relay finds events by polling, at most [`fallback`](Self::fallback) after they were committed.
    #[must_use]
    pub fn poll_only(mut self) -> Self {
        self.poll_only = true;
        self
    }

    /// Works behind a pooler in transaction mode: no LISTEN, no prepared statements, no session settings, and a
    /// transaction around each operation, which takes two more round trips.
    #[must_use]
    pub fn pooler(mut self) -> Self {
        self.pooler = true;
        self.poll_only = true;
        self
    }

    /// Sets the longest pause between polls while nothing is listening, and how soon a listener is doubted that gets no
    /// answer any more (it pings twice as often): how late an event is found that no notification told of. Not below 100 ms for
    /// a listener. Where the server's answers take longer than half of this, a relay that sleeps also polls at each ping: a
    /// fallback of four round trips is better there. Defaults to 250 ms.
    #[must_use]
    pub fn fallback(mut self, fallback: Duration) -> Self {
        self.fallback = fallback;
        self
    }

    /// Sets how long one statement may take before its connection is given up. Defaults to 10 s.
    ///
    /// Keep it well under the lease, or a network that swallows packets costs the claims in flight.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Settles without waiting for the disk: faster on a busy one. A crash of the server may forget the last moments of
    /// settlements; their events are then delivered again, as at-least-once allows. Off by default.
    #[must_use]
    pub fn settle_asynchronously(mut self) -> Self {
        self.asynchronous = true;
        self
    }

    /// Deletes events when they are completed instead of keeping them. Off by default.
    ///
    /// A completed event's id is forgotten with it: publishing it again publishes a new event.
    #[must_use]
    pub fn delete_completed(mut self) -> Self {
        self.delete = true;
        self
    }

    /// Connects, checks what the relay needs, and starts listening.
    ///
    /// A server that cannot be reached is an error at once. One that is just starting, or has no connection left, is
    /// waited for as long as [`deadline`](Self::deadline) says.
    ///
    /// # Errors
    /// [`StartError`] says what is missing. That nothing can listen is no error: the source polls then, and says so.
    ///
    /// # Cancel safety
    /// Nothing is left behind but connections, which close.
    pub async fn start(self) -> Result<PgSource, StartError> {
        if self.deadline.is_zero() || self.fallback.is_zero() {
            return Err(ConfigError::new("deadline or fallback", "0", "both take more than zero").into());
        }
        // Each kind of work has sessions of its own: one that did everything would keep every plan, and touch every page.
        let claims = self.sessions(1, include_str!("../../sql/warm_claim.sql"));
        let settlements = self.sessions(2, include_str!("../../sql/warm_settle.sql"));
        let extensions = self.sessions(1, "");
        let sessions = self.sessions(1, "");
        let Preflight { channel, lock, sight } = self.preflight().await?;
        let hearing = if self.poll_only {
            Hearing::PollOnly
        } else {
            Hearing::Down
        };
        let ears = Arc::new(Ears::new(hearing));
        let flow = Arc::new(Flow::default());
        let marker = Marker {
            sessions: sessions.clone(),
            candidate: self.sql("SELECT candidate, writers FROM \"outbox\".\"outbox_mark_candidate\"()"),
            move_to: self.sql("SELECT \"outbox\".\"outbox_mark_move\"($1, $2)"),
            sweep: self.sql("SELECT below, stranded, more FROM \"outbox\".\"outbox_sweep\"()"),
            flow: Arc::clone(&flow),
        };
        let opening = Box::pin(async { tokio::join!(claims.open(), settlements.open()) });
        let (swept, _) = tokio::join!(Box::pin(marker.sweep()), opening);
        let unswept = swept?;
        let mut tasks = JoinSet::new();
        tasks.spawn(marker.run(unswept));
        if !self.poll_only {
            tasks.spawn(
                Listener {
                    ears: Arc::clone(&ears),
                    pool: sessions.pool.clone(),
                    channel,
                    lock,
                    next_due: self.sql("SELECT \"outbox\".\"outbox_next_due\"()"),
                    fallback: self.fallback,
                }
                .run(),
            );
        }
        Ok(PgSource {
            claims,
            settlements,
            extensions,
            sessions,
            claim: Claim {
                claim: self.sql(include_str!("../../sql/claim.sql")),
                read_at: self.sql(include_str!("../../sql/read_at.sql")),
                read: self.sql(include_str!("../../sql/read.sql")),
                pooler: self.pooler,
            },
            settle: Settle {
                settle: self.sql(include_str!("../../sql/settle.sql")),
                asynchronous: self.asynchronous,
                delete: self.delete,
            },
            extend: self.sql(include_str!("../../sql/extend.sql")),
            paused: self.sql("SELECT lease, seq FROM \"outbox\".\"outbox_paused\"($1, $2)"),
            worker: Uuid::new_v4(),
            ears,
            flow,
            sight,
            fallback: self.fallback,
            _tasks: tasks,
        })
    }

    fn sql(&self, text: &str) -> Sql {
        let sql = Sql::new(&self.names, text);
        if self.pooler { sql.unprepared() } else { sql }
    }

    /// So many sessions. `warm` is run in each first, and makes the plans of what it is for.
    fn sessions(&self, most: u32, warm: &str) -> Sessions {
        Sessions {
            pool: self.pool(most, self.names.render(warm)),
            deadline: self.deadline,
            pooler: self.pooler,
        }
    }

    /// Not tested at every use: a broken connection shows itself, and the operation is tried again.
    fn pool(&self, most: u32, warm: String) -> PgPool {
        let pooler = self.pooler;
        PgPoolOptions::new()
            .max_connections(most)
            .min_connections(0)
            .test_before_acquire(false)
            .acquire_timeout(self.deadline)
            .after_connect(move |connection, _| {
                let warm = warm.clone();
                Box::pin(async move {
                    if !pooler {
                        sqlx::raw_sql(include_str!("../../sql/session.sql"))
                            .execute(&mut *connection)
                            .await?;
                        // Only faster: while a deployment is under way, the functions in it may be of another version.
                        let warmed = sqlx::raw_sql(AssertSqlSafe(warm)).execute(connection).await;
                        if let Err(error) = warmed {
                            tracing::debug!(%error, "outbox_session_not_warmed");
                        }
                    }
                    Ok(())
                })
            })
            .connect_lazy_with(self.session_options())
    }

    fn session_options(&self) -> PgConnectOptions {
        let options = self.options.clone();
        match self.pooler {
            // Poolers refuse start-up parameters that they do not know.
            true => options.statement_cache_capacity(0).extra_float_digits(None),
            false => options.application_name("outbox-relay"),
        }
    }

    /// Refuses what cannot work.
    async fn preflight(&self) -> Result<Preflight, StartError> {
        let failed = |error| StartError::Source(source_error("start", error));
        let mut connection = reach(&self.session_options(), self.deadline).await?;
        // Behind a pooler, what is prepared is known to the same session only, and that is kept for a transaction.
        if self.pooler {
            sqlx::raw_sql("BEGIN READ ONLY")
                .execute(&mut connection)
                .await
                .map_err(failed)?;
        }
        // A lock on the tables, as of a migration that waits itself, must not keep the start waiting for ever.
        let preflight = tokio::time::timeout(self.deadline, self.look(&mut connection))
            .await
            .map_err(|_| SourceError::unavailable("start", Slow(self.deadline)))??;
        if self.pooler {
            sqlx::raw_sql("COMMIT")
                .execute(&mut connection)
                .await
                .map_err(failed)?;
        }
        connection.close().await.map_err(failed)?;
        Ok(preflight)
    }

    async fn look(&self, connection: &mut PgConnection) -> Result<Preflight, StartError> {
        let failed = |error| StartError::Source(source_error("start", error));
        let rights = Rights::read(&mut *connection, &self.names)
            .await
            .map_err(failed)?;
        if !rights.missing.is_empty() {
            let (role, missing, remedy) = (rights.role, rights.missing, rights.remedy);
            return Err(StartError::Rights {
                role,
                missing,
                remedy,
            });
        }
        check_version(&mut *connection, &self.names).await?;
        let sight = Sight::new(
            self.sql("SELECT \"outbox\".\"outbox_sees_all\"()"),
            rights.role,
            format!("{}.{}", self.names.schema(), self.names.table()),
            rights.remedy,
        );
        if rights.sees_all != Some(true) {
            return Err(sight.blind());
        }
        let preflight = self.sql(include_str!("../../sql/preflight.sql"));
        let row = preflight.query().fetch_one(connection).await.map_err(failed)?;
        Ok(Preflight {
            channel: row.try_get(0).map_err(failed)?,
            lock: row.try_get(1).map_err(failed)?,
            sight,
        })
    }
}

/// What the first connection has found out.
struct Preflight {
    channel: String,
    /// The number of the sleeper's lock.
    lock: i64,
    sight: Sight,
}
