//! Finding out what is wrong: each check gives a verdict, its evidence, and the remedy.

mod backlog;
mod check;
mod claims;
mod lock;
mod schema;
mod server;
mod table;
mod wake;

use std::io::IsTerminal;

use outbox::Names;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool, Postgres, Row};

use self::check::{Check, Verdict};
use crate::cli::{Doctor, Target};
use crate::connection::Part;
use crate::exit::{CliError, Exit};
use crate::output;

/// What every check works with.
struct Patient<'a> {
    pool: PgPool,
    names: Names,
    args: &'a Doctor,
}

impl Patient<'_> {
    /// A query written for the default names. A pooler would leave what is prepared to another client.
    fn query(&self, sql: &str) -> sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments> {
        sqlx::query(AssertSqlSafe(self.names.render(sql))).persistent(false)
    }

    async fn connect(&self) -> Result<sqlx::pool::PoolConnection<Postgres>, sqlx::Error> {
        self.pool.acquire().await
    }
}

pub(super) async fn run(target: &Target, args: &Doctor) -> Result<Exit, CliError> {
    let patient = Patient {
        pool: target.pool(Part::Relay)?,
        names: target.names()?,
        args,
    };
    let mut checks = Vec::new();
    let mut connection = target.connect(Part::Relay).await?;
    // Behind a pooler, only a transaction keeps to one session: between a statement's preparation and its execution, too.
    let mut transaction = connection.begin().await?;
    let usable = server::look(&patient, &mut transaction, &mut checks).await?;
    transaction.rollback().await?;
    if !usable {
        return report(target, &checks);
    }
    let pooled = wake::look(&patient, &mut checks).await?;
    let mut transaction = connection.begin().await?;
    // Without its tables there is no answer to the rest; without the right schema and the rights of a relay, it would only
    // repeat that.
    if table::look(&patient, &mut transaction, &mut checks).await?
        && schema::look(&patient, &mut transaction, &mut checks).await?
    {
        claims::look(&patient, &mut transaction, &mut checks).await?;
        backlog::look(&patient, &mut transaction, &mut checks, pooled).await?;
    }
    transaction.rollback().await?;
    report(target, &checks)
}

fn report(target: &Target, checks: &[Check]) -> Result<Exit, CliError> {
    if target.json {
        output::json(&checks)?;
    } else {
        let color = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        for check in checks {
            output::line(&check.text(color))?;
        }
        let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        output::line(&format!(
            "\n{} checks: {} wrong, {} to look at",
            checks.len(),
            count(Verdict::Wrong),
            count(Verdict::Look)
        ))?;
    }
    match checks.iter().any(|check| check.verdict == Verdict::Wrong) {
        true => Ok(Exit::Findings),
        false => Ok(Exit::Success),
    }
}

/// One value, or what the server says against it. Asked by one message, which no pooler takes apart.
async fn ask<T>(connection: &mut PgConnection, sql: &'static str) -> Result<T, sqlx::Error>
where
    T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + Send + Unpin,
{
    sqlx::raw_sql(sql).fetch_one(connection).await?.try_get(0)
}

/// Names a fact that only a role with more rights could see, instead of failing the whole examination.
fn unseen(name: &'static str, error: &sqlx::Error) -> Check {
    Check::skipped(name, format!("could not look: {}", crate::exit::chain(error)))
}
