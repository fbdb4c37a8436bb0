//! Granting roles their part.

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection};

use crate::cli::{Roles, Switch, Target};
use crate::connection::Part;
use crate::exit::{CliError, Exit};
use crate::output;

pub(super) async fn run(target: &Target, args: &Roles) -> Result<Exit, CliError> {
    let names = target.names()?;
    let statements: Vec<String> = statements(args).iter().map(|sql| names.render(sql)).collect();
    if statements.is_empty() {
        return Err(CliError::Usage(
            "nothing to grant: give --publisher, --handler, --relay, --reader, --revoke or --tenants"
                .to_owned(),
        ));
    }
    if args.sql {
        output::line(&statements.join("\n"))?;
        return Ok(Exit::Success);
    }
    let mut connection = target.connect(Part::Owner).await?;
    let mut transaction = connection.begin().await?;
    outbox::check_version(&mut transaction, &names).await?;
    for statement in &statements {
        sqlx::raw_sql(AssertSqlSafe(statement.clone()))
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    if target.json {
        output::json(&json!({ "done": statements }))?;
    } else {
        output::line(&format!("done, in one transaction:\n{}", statements.join("\n")))?;
    }
    Ok(Exit::Success)
}

fn statements(args: &Roles) -> Vec<String> {
    let parts = [
        ("revoke", &args.revoke),
        ("grant_publisher", &args.publisher),
        ("grant_handler", &args.handler),
        ("grant_relay", &args.relay),
        ("grant_reader", &args.reader),
    ];
    let grants = parts.into_iter().flat_map(|(function, roles)| {
        roles
            .iter()
            .map(move |role| format!("SELECT \"outbox\".\"outbox_{function}\"({});", literal(role)))
    });
    let tenants = args.tenants.map(|switch| {
        let verb = match switch {
            Switch::On => "enable",
            Switch::Off => "disable",
        };
        format!("SELECT \"outbox\".\"outbox_{verb}_tenants\"();")
    });
    grants.chain(tenants).collect()
}

/// A text as SQL, whatever the server's settings: quotes doubled, backslashes in the form that says so.
fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match quoted.contains('\\') {
        true => format!(" E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn a_role_cannot_break_out_of_its_quotes() {
        assert_eq!(literal("o'neil"), "'o''neil'");
        assert_eq!(literal("a\\'b"), " E'a\\\\''b'");
    }
}
