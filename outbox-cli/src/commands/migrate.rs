//! Bringing the schema up to date.

use outbox::{SCHEMA_VERSION, migrate, migration_sql};
use serde_json::json;
use sqlx::AssertSqlSafe;

use crate::cli::{Migrate, Target};
use crate::connection::Part;
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn run(target: &Target, args: &Migrate) -> Result<Exit, CliError> {
    let names = target.names()?;
    let tenants = names.render("SELECT \"outbox\".\"outbox_enable_tenants\"();");
    if args.sql {
        output::line(&migration_sql(&names))?;
        if args.tenants {
            output::line(&tenants)?;
        }
        return Ok(Exit::Success);
    }
    let mut connection = target.connect(Part::Owner).await?;
    let applied = migrate(&mut connection, &names).await?;
    if args.tenants {
        sqlx::raw_sql(AssertSqlSafe(tenants))
            .execute(&mut connection)
            .await?;
    }
    if target.json {
        output::json(&json!({"version": SCHEMA_VERSION, "applied": applied, "tenants": args.tenants}))?;
        return Ok(Exit::Success);
    }
    let text = match applied.as_slice() {
        [] => format!("nothing to do: the schema is at version {SCHEMA_VERSION}"),
        [from, ..] => format!("applied versions {from} to {SCHEMA_VERSION}"),
    };
    output::line(&text)?;
    if args.tenants {
        output::line("tenants are isolated: publishers and readers need app.current_tenant")?;
    }
    Ok(Exit::Success)
}
