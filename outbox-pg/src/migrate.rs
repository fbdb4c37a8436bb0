//! The schema and its versions.

use sqlx::{PgConnection, Row};

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
    3 "0003_lease",
    4 "0004_look",
    5 "0005_claim",
    6 "0006_settle",
    7 "0007_mark",
    8 "0008_admin",
    9 "0009_status",
    10 "0010_inbox",
    11 "0011_publish",
    12 "0012_roles",
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
    /// There is a table of the outbox's name, and nothing that says how far it was migrated.
    #[error(
        "table {schema}.{table} exists without its version table {schema}.{table}_migration: it is somebody else's, or files \
         of migrations/ were run one by one; take another name, or drop what they made and run `migrate`, or what \
         `migration_sql` returns (`outbox migrate --sql`)"
    )]
    Unversioned {
        /// The schema's name.
        schema: String,
        /// The table's name.
        table: String,
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
/// Safe to run twice, by several programs at once (they take turns), and to cancel: everything happens in one script
/// that the server runs whole or not at all. Keeps its own version table, `<table>_migration`, so it gets along with
/// the application's migrations. Needs the right to create the schema, or a schema in which it may create.
///
/// # Errors
/// [`MigrateError`] when the database is newer than this build, when there is a table of that name which `migrate` has not
/// made, or when a statement fails; nothing has changed then.
///
/// # Cancel safety
/// Dropping the future leaves the schema as it was or as it is to be, and the connection outside of any transaction. The
/// script that was sent may still be running then: if another program migrates at the same time, the next query on this
/// connection can fail with its error, "the outbox was migrated to version ... meanwhile". Close the connection instead.
pub async fn migrate(connection: &mut PgConnection, names: &Names) -> Result<Vec<i32>, MigrateError> {
    let failed = |name: &'static str| move |source| MigrateError::Database { name, source };
    loop {
        let found = version(connection, names).await?;
        if found > SCHEMA_VERSION {
            return Err(MigrateError::Newer {
                schema: names.schema().to_owned(),
                found,
                known: SCHEMA_VERSION,
            });
        }
        let missing: Vec<&Migration> = MIGRATIONS.iter().filter(|one| one.version > found).collect();
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let exists = schema_exists(connection, names)
            .await
            .map_err(failed("read schema"))?;
        // Sent as one message, so one transaction: there is no await between its begin and its end at which this future
        // could be dropped, and leave a transaction open on a connection that goes to somebody else next.
        let script = script(names, found, &missing, exists);
        let Err(error) = Sql::verbatim(&script).run(connection).await else {
            return Ok(missing.iter().map(|one| one.version).collect());
        };
        // Another program may have been faster: what it did is no error.
        let now = version(connection, names).await;
        if now.is_ok_and(|now| now == found) || !matches!(error, sqlx::Error::Database(_)) {
            return Err(failed("apply")(error));
        }
    }
}

/// Checks that the schema is at the version that this build needs.
///
/// # Errors
/// [`MigrateError::Older`] or [`MigrateError::Newer`] when it is not, [`MigrateError::Unversioned`] when nothing says.
///
/// # Cancel safety
/// Reads only.
pub async fn check_version(connection: &mut PgConnection, names: &Names) -> Result<(), MigrateError> {
    let found = version(connection, names).await?;
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
    let all: Vec<&Migration> = MIGRATIONS.iter().collect();
    let schema = format!("CREATE SCHEMA IF NOT EXISTS \"{}\";\n", names.schema());
    schema + &steps(names, &all)
}

/// Migrates from a version, if that is still what there is once the lock that migrations share is held.
fn script(names: &Names, found: i32, missing: &[&Migration], schema_exists: bool) -> String {
    // Not IF NOT EXISTS: that needs the right to create even where the schema exists.
    let schema = match schema_exists {
        true => String::new(),
        false => format!("CREATE SCHEMA \"{}\";\n", names.schema()),
    };
    // Names hold no quotes.
    let lock = format!(
        "SELECT pg_advisory_xact_lock(hashtextextended('outbox migrations of {}.{}', 0));\n",
        names.schema(),
        names.table()
    );
    let guard = names
        .render(include_str!("../sql/migration_guard.sql"))
        .replace("$found", &found.to_string());
    format!("{lock}{guard}{schema}{}", steps(names, missing))
}

fn steps(names: &Names, migrations: &[&Migration]) -> String {
    let mut steps = names.render(include_str!("../sql/migration_table.sql"));
    for migration in migrations {
        steps += &names.render(migration.sql);
        steps += &names.render(&format!(
            "\nINSERT INTO \"outbox\".\"outbox_migration\" (version, name) VALUES ({}, '{}');\n",
            migration.version, migration.name
        ));
    }
    steps + &names.render(REGRANT) + ";\n"
}

/// The functions that the migrations make, less the table's name.
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    const MADE: &str = "CREATE FUNCTION \"outbox\".\"outbox_";
    let made = MIGRATIONS.iter().flat_map(|one| one.sql.split(MADE).skip(1));
    made.filter_map(|rest| rest.split_once('"').map(|(name, _)| name))
}

// None of the statements below is kept prepared: behind a pooler, names of statements are shared with strangers.

async fn schema_exists(connection: &mut PgConnection, names: &Names) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1)")
        .bind(names.schema())
        .persistent(false)
        .fetch_one(connection)
        .await
}

async fn version(connection: &mut PgConnection, names: &Names) -> Result<i32, MigrateError> {
    let (schema, table) = (names.schema().to_owned(), names.table().to_owned());
    match recorded(connection, names).await {
        Ok((Some(version), _)) => Ok(version),
        Ok((None, false)) => Ok(0),
        Ok((None, true)) => Err(MigrateError::Unversioned { schema, table }),
        Err(source) => Err(MigrateError::Database {
            name: "read version",
            source,
        }),
    }
}

/// The version that is recorded, if any, and whether there is a table.
async fn recorded(connection: &mut PgConnection, names: &Names) -> Result<(Option<i32>, bool), sqlx::Error> {
    let table = format!("\"{}\".\"{}", names.schema(), names.table());
    // The table first: a migration that commits between the two looks has made both.
    let (exists, versioned): (bool, bool) =
        sqlx::query_as("SELECT to_regclass($1) IS NOT NULL, to_regclass($2) IS NOT NULL")
            .bind(format!("{table}\""))
            .bind(format!("{table}_migration\""))
            .persistent(false)
            .fetch_one(&mut *connection)
            .await?;
    if !versioned {
        return Ok((None, exists));
    }
    let latest = Sql::new(
        names,
        "SELECT coalesce(max(version), 0) FROM \"outbox\".\"outbox_migration\"",
    );
    let row = latest.unprepared().query().fetch_one(connection).await?;
    Ok((Some(row.try_get(0)?), exists))
}
