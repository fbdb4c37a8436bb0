//! The schema's version, and whether the role may do and see what a relay has to.

use outbox::{MigrateError, Rights, check_version};
use sqlx::PgConnection;

use super::Patient;
use super::check::Check;
use crate::exit::CliError;

/// Whether there is any use in further checks.
pub(super) async fn look(
    patient: &Patient<'_>,
    connection: &mut PgConnection,
    checks: &mut Vec<Check>,
) -> Result<bool, CliError> {
    let rights = Rights::read(connection, &patient.names).await?;
    let remedy = format!(
        "connect as the relay does, by JOBS_DB_URL; or make {} one, as the owner of the tables: outbox roles --relay {}",
        rights.role, rights.role
    );
    if !rights.missing.is_empty() {
        checks.push(Check::wrong(
            "rights",
            format!("role {} lacks {}", rights.role, rights.missing.join(", ")),
            remedy,
        ));
        return Ok(false);
    }
    match check_version(connection, &patient.names).await {
        Ok(()) => checks.push(Check::ok("schema", format!("version {}", outbox::SCHEMA_VERSION))),
        Err(error @ MigrateError::Older { .. }) => {
            checks.push(Check::wrong(
                "schema",
                error.to_string(),
                "let the owner run: outbox migrate",
            ));
            return Ok(false);
        }
        Err(error @ MigrateError::Newer { .. }) => {
            checks.push(Check::wrong(
                "schema",
                error.to_string(),
                "use a newer build of this command, and of the relays",
            ));
            return Ok(false);
        }
        Err(error @ MigrateError::Unversioned { .. }) => {
            checks.push(Check::wrong(
                "schema",
                error.to_string(),
                "drop what the files made, then let the owner run: outbox migrate",
            ));
            return Ok(false);
        }
        Err(error) => return Err(error.into()),
    }
    checks.push(Check::ok(
        "rights",
        format!("role {} may do what a relay does", rights.role),
    ));
    let sees_all = rights.sees_all == Some(true);
    checks.push(match sees_all {
        true => Check::ok("visibility", "row-level security hides no event from it"),
        false => Check::wrong(
            "visibility",
            format!(
                "row-level security hides events from role {}: a relay would never deliver them",
                rights.role
            ),
            remedy,
        ),
    });
    Ok(sees_all)
}
