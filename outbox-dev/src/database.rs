//! One database per test.

use std::{fmt, thread, time::Duration};

use sqlx::{
    AssertSqlSafe, Connection, Executor, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use uuid::Uuid;

use crate::{
    error::{DevError, with_causes},
    postgres::DevPostgres,
};

const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(20);

/// An empty database with a name of its own, dropped at the end, with whoever is still connected to it.
///
/// If the thread panics it is kept and its URL printed. On a server of our own it lives only as long as
/// that one, so set `OUTBOX_DEV_KEEP=1` to look at it.
pub struct TestDatabase {
    name: String,
    url: String,
    server: PgConnectOptions,
    options: PgConnectOptions,
    pool: PgPool,
}

impl TestDatabase {
    /// A database on the server that this process shares.
    ///
    /// # Errors
    /// There is no server, or it refuses.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the empty database behind.
    pub async fn create() -> Result<Self, DevError> {
        Self::create_on(DevPostgres::shared().await?).await
    }

    /// A database on the given server.
    ///
    /// # Errors
    /// The server refuses.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the empty database behind.
    pub async fn create_on(server: &DevPostgres) -> Result<Self, DevError> {
        let name = format!("test_{}", Uuid::new_v4().simple());
        let admin = server.connect_options()?;
        let mut connection = PgConnection::connect_with(&admin).await?;
        // The name is letters and digits of our own making.
        connection
            .execute(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .await?;
        connection.close().await?;
        let options = admin.clone().database(&name);
        let pool = PgPoolOptions::new()
            .max_connections(10)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .connect_lazy_with(options.clone());
        let url = with_database(server.url(), &name);
        Ok(Self {
            name,
            url,
            server: admin,
            options,
            pool,
        })
    }

    /// Its name, without quotes.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL, password included.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// For connections apart from the pool.
    #[must_use]
    pub fn connect_options(&self) -> PgConnectOptions {
        self.options.clone()
    }

    /// Up to ten connections, opened as needed.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }
}

impl fmt::Debug for TestDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestDatabase")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "outbox-dev: the test panicked; its database is kept (with OUTBOX_DEV_KEEP=1 its server too): {}",
                self.url
            );
            return;
        }
        let (server, name) = (self.server.clone(), self.name.clone());
        // A thread with a runtime of its own, because a destructor cannot wait on the test's.
        let dropping = thread::spawn(move || drop_database(&server, &name));
        match dropping.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!(
                "outbox-dev: could not drop {}: {}",
                self.name,
                with_causes(&error)
            ),
            Err(_) => eprintln!("outbox-dev: could not drop {}", self.name),
        }
    }
}

fn drop_database(server: &PgConnectOptions, name: &str) -> Result<(), DevError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| DevError::control("drop a database", error))?;
    runtime.block_on(async {
        let connecting = tokio::time::timeout(ACQUIRE_TIMEOUT, PgConnection::connect_with(server));
        let mut connection = connecting
            .await
            .map_err(|elapsed| DevError::control("drop a database", elapsed))??;
        let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        connection.execute(AssertSqlSafe(statement)).await?;
        Ok(connection.close().await?)
    })
}

/// The URL with another database; parameters stay.
fn with_database(url: &str, name: &str) -> String {
    let (base, parameters) = url
        .split_once('?')
        .map_or((url, None), |(base, rest)| (base, Some(rest)));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let end = base[authority..]
        .find('/')
        .map_or(base.len(), |at| authority + at);
    let parameters = parameters.map(|text| format!("?{text}")).unwrap_or_default();
    format!("{}/{name}{parameters}", &base[..end])
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        assert_eq!(
            with_database("postgres://u:p@h:5432/a", "b"),
            "postgres://u:p@h:5432/b"
        );
        assert_eq!(with_database("postgres://u@h", "b"), "postgres://u@h/b");
        assert_eq!(
            with_database("postgres://h/a?sslmode=disable", "b"),
            "postgres://h/b?sslmode=disable"
        );
        assert_eq!(
            with_database("postgres:///a?host=/run/pg", "b"),
            "postgres:///b?host=/run/pg"
        );
    }
}
