//! The way to the database. Secrets come from the environment or a file, never from the command line.

use std::path::Path;
use std::time::Duration;

use outbox::admin::PgAdmin;
use outbox::variable::{self, DATABASE_URL, JOBS_DB_URL};
use outbox::{ConfigError, DatabaseUrl, Names, Rights};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};

use crate::cli::Target;
use crate::exit::CliError;

/// Who the command works as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// The owner of the tables: `DATABASE_URL`, else `JOBS_DB_URL`.
    Owner,
    /// The relay: `JOBS_DB_URL`, else `DATABASE_URL`.
    Relay,
}

/// How long to wait for a connection.
const PATIENCE: Duration = Duration::from_secs(10);

impl Target {
    pub(crate) fn names(&self) -> Result<Names, CliError> {
        Ok(Names::new(self.schema.clone(), self.table.clone())?)
    }

    pub(crate) fn options(&self, part: Part) -> Result<PgConnectOptions, CliError> {
        let variables = match (&self.url_env, part) {
            (Some(name), _) => vec![name.as_str()],
            (None, Part::Owner) => vec![DATABASE_URL, JOBS_DB_URL],
            (None, Part::Relay) => vec![JOBS_DB_URL, DATABASE_URL],
        };
        let url = match &self.url_file {
            Some(path) => DatabaseUrl::parse(path.display().to_string(), &read(path)?)?,
            None => first_set(&variables)?,
        };
        // The parser's own message could quote the URL.
        let options: PgConnectOptions = url.expose().parse().map_err(|_| {
            let right = "it takes postgres://USER:PASSWORD@HOST/DATABASE, special characters percent-encoded";
            ConfigError::new(url.origin(), "no URL of a database", right)
        })?;
        // As poolers in transaction mode want it: no setting of the session that they do not know, nothing kept prepared.
        Ok(options
            .application_name("outbox-cli")
            .extra_float_digits(None)
            .statement_cache_capacity(0))
    }

    /// One connection. Unlike a pool, it says at once why there is none.
    pub(crate) async fn connect(&self, part: Part) -> Result<PgConnection, CliError> {
        let connecting = PgConnection::connect_with(&self.options(part)?).await;
        connecting.map_err(|error| match error {
            // A wrong password is for the owner of the URL to mend, like a wrong host.
            sqlx::Error::Database(refusal) => CliError::Unreachable(refusal.message().to_owned()),
            other => CliError::Unreachable(crate::exit::chain(&other)),
        })
    }

    pub(crate) fn pool(&self, part: Part) -> Result<PgPool, CliError> {
        Ok(PgPoolOptions::new()
            .max_connections(3)
            .acquire_timeout(PATIENCE)
            .connect_lazy_with(self.options(part)?))
    }

    /// An admin whose role may do and see everything, or an error that names what is missing.
    pub(crate) async fn admin(&self) -> Result<PgAdmin, CliError> {
        let (pool, names) = (self.pool(Part::Relay)?, self.names()?);
        let mut connection = self.connect(Part::Relay).await?;
        // Behind a pooler in transaction mode, only a transaction keeps to one session.
        check(&mut *connection.begin().await?, &names).await?;
        Ok(PgAdmin::new(pool, &names).acting_as(self.actor_name()))
    }

    /// Who wants the change.
    pub(crate) fn actor_name(&self) -> String {
        self.actor.clone().unwrap_or_else(user)
    }
}

async fn check(connection: &mut PgConnection, names: &Names) -> Result<(), CliError> {
    let rights = Rights::read(connection, names).await?;
    let remedy = format!("let the owner of the tables run: {}", rights.remedy);
    if !rights.missing.is_empty() {
        let what = format!("role {} lacks {}", rights.role, rights.missing.join(", "));
        return Err(CliError::Refused { what, remedy });
    }
    outbox::check_version(connection, names).await?;
    if rights.sees_all != Some(true) {
        let what = format!("role {} cannot see the events of every tenant", rights.role);
        return Err(CliError::Refused { what, remedy });
    }
    Ok(())
}

/// The first variable that has a value. One whose value is no text is an error: the next may be another database.
fn first_set(variables: &[&str]) -> Result<DatabaseUrl, CliError> {
    for name in variables {
        if let Some(url) = variable::read(name)? {
            return Ok(DatabaseUrl::parse((*name).to_owned(), &url)?);
        }
    }
    Err(CliError::Usage(format!(
        "no database: set {} to postgres://USER:PASSWORD@HOST/DATABASE, or give --url-file",
        variables.join(" or ")
    )))
}

fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path)
        .map_err(|error| CliError::Usage(format!("cannot read {}: {error}", path.display())))
}

/// Who sits at the keyboard, as far as the system says. A name that is no text is better recorded in part than not at all.
fn user() -> String {
    ["USER", "LOGNAME"]
        .iter()
        .find_map(std::env::var_os)
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| !name.is_empty())
        .or_else(user_number)
        .unwrap_or_default()
}

/// Containers often set neither variable.
#[cfg(unix)]
fn user_number() -> Option<String> {
    use std::os::unix::fs::MetadataExt;

    let own = std::fs::metadata("/proc/self").ok()?;
    Some(format!("user {}", own.uid()))
}

#[cfg(not(unix))]
fn user_number() -> Option<String> {
    None
}
