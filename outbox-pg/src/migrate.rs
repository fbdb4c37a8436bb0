//! The schema and its versions.

use sqlx::{Connection, PgConnection, Row};

use crate::Names;
use crate::sql::Sql;

/// One numbered migration, as embedded from the folder `migrations/`.
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

macro_rules! migrations {
    ($($version:literal $name:literal),* $(,)?) => {
        &[$(Migration { version: $version, name: $name, sql: include_str!(concat!("../../migrations/", $name, ".sql")) }),*]
    };
}

const MIGRATIONS: &[Migration] = migrations![
    1 "0001_outbox",
    2 "0002_wake",
    3 "0003_claim",
    4 "0004_settle",
    5 "0005_mark",
    6 "0006_admin",
    7 "0007_inbox",
    9 "0009_roles",
];

/// The schema version that this build needs.
pub const SCHEMA_VERSION: i32 = match MIGRATIONS.last() {
    Some(last) => last.version,
    None => 0,
};

/// What a migration adds is closed to everybody, and granted to whom its like was granted before.
const REGRANT: &str = "SELECT \"outbox\".\"outbox_regrant\"()";

/// Why the schema could not be brought up to date, or cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database was migrated by a newer build.
    #[error(
        "schema {schema} is at version {found}, this build knows versions up to {known}; use a build that is at least as new"
    )]
    Newer {
        /// The schema's name.
        schema: String,
        /// The version in the database.
        found: i32,
        /// The version of this build.
        known: i32,
    },
    /// The database is behind, or has no outbox at all.
    #[error(
        "schema {schema} is at version {found}, this build needs version {known}; run the migrations first"
    )]
    Older {
        /// The schema's name.
        schema: String,
        /// The version in the database; 0 if there is no outbox.
        found: i32,
        /// The version of this build.
        known: i32,
    },
    /// A statement failed.
    #[error("migration {name} failed")]
    Database {
        /// Which migration.
        name: &'static str,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
}

/// Brings the schema up to date, and returns the versions that were applied.
///
/// Safe to run twice, by several programs at once (they take turns), and to cancel: everything happens in one
/// transaction. Keeps its own version table, `<table>_migration`, so it gets along with the application's migrations.
/// Needs the right to create the schema, or a schema in which it may create.
///
/// # Errors
/// [`MigrateError`] when the database is newer than this build, or a statement fails; nothing has changed then.
///
/// # Cancel safety
/// Dropping the future rolls everything back.
pub async fn migrate(connection: &mut PgConnection, names: &Names) -> Result<Vec<i32>, MigrateError> {
    let failed = |name: &'static str| move |source| MigrateError::Database { name, source };
    let mut transaction = connection.begin().await.map_err(failed("begin"))?;
    prepare(&mut transaction, names)
        .await
        .map_err(failed("prepare"))?;
    let found = version(&mut transaction, names)
        .await
        .map_err(failed("read version"))?;
    if found > SCHEMA_VERSION {
        return Err(MigrateError::Newer {
            schema: names.schema().to_owned(),
            found,
            known: SCHEMA_VERSION,
        });
    }
    let mut applied = Vec::new();
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > found) {
        apply(&mut transaction, names, migration)
            .await
            .map_err(failed(migration.name))?;
        applied.push(migration.version);
    }
    if !applied.is_empty() {
        Sql::new(names, REGRANT)
            .run(&mut transaction)
            .await
            .map_err(failed("grants"))?;
    }
    transaction.commit().await.map_err(failed("commit"))?;
    Ok(applied)
}

/// Checks that the schema is at the version that this build needs.
///
/// # Errors
/// [`MigrateError::Older`] or [`MigrateError::Newer`] when it is not.
///
/// # Cancel safety
/// Reads only.
pub async fn check_version(connection: &mut PgConnection, names: &Names) -> Result<(), MigrateError> {
    let found = version(connection, names)
        .await
        .map_err(|source| MigrateError::Database {
            name: "read version",
            source,
        })?;
    let (schema, known) = (names.schema().to_owned(), SCHEMA_VERSION);
    match found.cmp(&known) {
        std::cmp::Ordering::Less => Err(MigrateError::Older { schema, found, known }),
        std::cmp::Ordering::Greater => Err(MigrateError::Newer { schema, found, known }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}

/// All migrations as plain SQL with the names put in, for those who run migrations by other means.
#[must_use]
pub fn migration_sql(names: &Names) -> String {
    let schema = format!("CREATE SCHEMA IF NOT EXISTS \"{}\";\n", names.schema());
    let table = names.render(include_str!("../sql/migration_table.sql"));
    let steps = MIGRATIONS.iter().map(|migration| {
        format!(
            "{}\n{};\n",
            names.render(migration.sql),
            names.render(&record(migration))
        )
    });
    std::iter::once(schema)
        .chain(std::iter::once(table))
        .chain(steps)
        .chain(std::iter::once(format!("{};\n", names.render(REGRANT))))
        .collect()
}

/// Takes the lock that migrations share, and makes the schema and the version table where they are missing.
async fn prepare(connection: &mut PgConnection, names: &Names) -> Result<(), sqlx::Error> {
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
        .bind(format!(
            "outbox migrations of {}.{}",
            names.schema(),
            names.table()
        ))
        .execute(&mut *connection)
        .await?;
    // Asked first: CREATE SCHEMA IF NOT EXISTS needs the right to create even where the schema exists.
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)")
            .bind(names.schema())
            .fetch_one(&mut *connection)
            .await?;
    if !exists {
        Sql::new(names, &format!("CREATE SCHEMA \"{}\"", names.schema()))
            .run(connection)
            .await?;
    }
    Sql::new(names, include_str!("../sql/migration_table.sql"))
        .run(connection)
        .await
}

async fn version(connection: &mut PgConnection, names: &Names) -> Result<i32, sqlx::Error> {
    let table = format!("\"{}\".\"{}_migration\"", names.schema(), names.table());
    let exists: bool = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL")
        .bind(&table)
        .fetch_one(&mut *connection)
        .await?;
    if !exists {
        return Ok(0);
    }
    let latest = Sql::new(
        names,
        "SELECT coalesce(max(version), 0) FROM \"outbox\".\"outbox_migration\"",
    );
    latest.query().fetch_one(connection).await?.try_get(0)
}

async fn apply(
    connection: &mut PgConnection,
    names: &Names,
    migration: &Migration,
) -> Result<(), sqlx::Error> {
    Sql::new(names, migration.sql).run(connection).await?;
    Sql::new(names, &record(migration)).run(connection).await
}

fn record(migration: &Migration) -> String {
    format!(
        "INSERT INTO \"outbox\".\"outbox_migration\" (version, name) VALUES ({}, '{}')",
        migration.version, migration.name
    )
}
