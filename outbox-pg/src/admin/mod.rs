//! Operating an outbox: looking, pausing, redriving, discarding, pruning.
//!
//! The same operations are SQL functions of the schema, for those who operate by psql.

mod action;
mod change;
mod event;
mod filter;
mod look;
mod prune;
mod status;

use std::sync::Arc;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgPool, Postgres};

pub use self::action::{Action, Begun, Progress};
pub use self::change::{Preview, Resumed};
pub use self::event::{EventDetails, EventSummary};
pub use self::filter::{Class, FailedFilter, ListFilter, Status};
pub use self::prune::{PgPruner, Pruned, PrunerHandle};
pub use self::status::{Block, Gauges, OutboxStatus, TypeCount};
use crate::Names;
use crate::begin::Session;
use crate::sql::Sql;

/// Looks at an outbox and changes it by hand.
///
/// Whatever it changes is recorded in the audit table, with who, when, which and why. Needs the rights of the relay, and
/// to insert and update there.
#[derive(Debug, Clone)]
pub struct PgAdmin {
    pool: PgPool,
    names: Names,
    statements: Arc<Statements>,
    actor: String,
}

#[derive(Debug)]
struct Statements {
    status: Sql,
    gauges: Sql,
    list: Sql,
    list_by_id: Sql,
    show: Sql,
    payload: Sql,
    preview: Sql,
    begin: Sql,
    begun: Sql,
    act: Sql,
    pause: Sql,
    resume: Sql,
}

impl PgAdmin {
    /// Operates the outbox of that name.
    #[must_use]
    pub fn new(pool: PgPool, names: &Names) -> Self {
        // Too rare to be kept prepared; and what is, fails behind a pooler in transaction mode.
        let sql = |text| Sql::new(names, text).unprepared();
        Self {
            pool,
            names: names.clone(),
            statements: Arc::new(Statements {
                status: sql("SELECT \"outbox\".\"outbox_status\"()::text"),
                gauges: sql(
                    "SELECT pending, oldest_seconds, failed, in_flight FROM \"outbox\".\"outbox_gauges\"($1)",
                ),
                list: sql(include_str!("../../sql/list.sql")),
                list_by_id: sql(include_str!("../../sql/list_by_id.sql")),
                show: sql(include_str!("../../sql/show.sql")),
                payload: sql(
                    "SELECT payload::text FROM \"outbox\".\"outbox\" WHERE id = $1 AND tenant_id = $2",
                ),
                preview: sql(include_str!("../../sql/preview.sql")),
                begin: sql("SELECT \"outbox\".\"outbox_begin_action\"($1, $2::text::json, $3, $4)"),
                begun: sql(
                    "SELECT action, filter::text, reason, actor FROM \"outbox\".\"outbox_audit\" \
                     WHERE number = $1 AND action IN ('redrive', 'discard')",
                ),
                act: sql("SELECT changed, finished FROM \"outbox\".\"outbox_act\"($1, $2)"),
                pause: sql("SELECT \"outbox\".\"outbox_pause\"($1, $2, $3, $4, $5)"),
                resume: sql(
                    "SELECT removed, parked_by FROM \"outbox\".\"outbox_resume\"($1, $2, $3, $4, $5)",
                ),
            }),
            actor: String::new(),
        }
    }

    /// Sets who is recorded as the one who wanted the changes. Defaults to nobody; the database role is always recorded.
    #[must_use]
    pub fn acting_as(mut self, actor: impl Into<String>) -> Self {
        self.actor = actor.into();
        self
    }

    /// Runs one statement in a transaction of its own; its only row.
    async fn fetch_one(&self, query: Statement) -> Result<PgRow, sqlx::Error> {
        let mut session = Session::acquire(&self.pool).await?;
        let mut transaction = session.begin(BEGIN).await?;
        let row = query.fetch_one(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(row)
    }

    /// Runs one statement in a transaction of its own; all rows.
    async fn fetch_all(&self, query: Statement) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut session = Session::acquire(&self.pool).await?;
        let mut transaction = session.begin(BEGIN).await?;
        let rows = query.fetch_all(&mut *transaction).await?;
        transaction.commit().await?;
        Ok(rows)
    }
}

type Statement = Query<'static, Postgres, PgArguments>;

/// Behind a pooler in transaction mode, only a transaction keeps to one session: between the preparation of a statement
/// and its execution, too. Whatever the defaults of the role are; and an operator who is stopped in the middle must not
/// keep the claim lock from the relays.
const BEGIN: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL idle_in_transaction_session_timeout = '5s'";
