//! What the role of a connection may do, compared with what a relay has to do.

use sqlx::{PgConnection, Row};

use crate::Names;
use crate::migrate::functions;
use crate::sql::Sql;

/// What a role may do with an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rights {
    /// The role.
    pub role: String,
    /// Privileges that a relay needs and the role lacks, such as `UPDATE on table outbox.outbox`.
    pub missing: Vec<String>,
    /// Whether it sees every event, of whichever tenant. `None` where it lacks the privilege to find out.
    pub sees_all: Option<bool>,
    /// The statement that gives it all that, for the owner of the tables to run.
    pub remedy: String,
}

impl Rights {
    /// Reads what the role of this connection may do. An outbox that does not exist misses no privilege.
    ///
    /// # Errors
    /// When the database cannot be reached.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn read(connection: &mut PgConnection, names: &Names) -> Result<Self, sqlx::Error> {
        // Asked once, and perhaps through a pooler, whose next client would meet what is kept prepared.
        let sql = |text| Sql::new(names, text).unprepared();
        let (role, remedy): (String, String) = {
            let text = "SELECT current_user::text, format('SELECT \"outbox\".\"outbox_grant_relay\"(%L)', current_user)";
            let row = sql(text).query().fetch_one(&mut *connection).await?;
            (row.try_get(0)?, row.try_get(1)?)
        };
        let rows = sql(include_str!("../sql/rights.sql"))
            .query()
            .bind(names.schema().to_owned())
            .bind(names.table().to_owned())
            .bind(relay_functions())
            .fetch_all(&mut *connection)
            .await?;
        let missing = rows
            .iter()
            .map(|row| row.try_get(0))
            .collect::<Result<Vec<String>, _>>()?;
        Ok(Self {
            role,
            sees_all: Self::look(connection, names, missing.is_empty()).await?,
            missing,
            remedy,
        })
    }

    async fn look(
        connection: &mut PgConnection,
        names: &Names,
        may_ask: bool,
    ) -> Result<Option<bool>, sqlx::Error> {
        let sql = |text| Sql::new(names, text).unprepared();
        let exists = sql(
            "SELECT EXISTS (SELECT FROM pg_catalog.pg_proc AS ours JOIN pg_catalog.pg_namespace AS schema \
             ON ours.pronamespace = schema.oid WHERE schema.nspname = $1 AND ours.proname = $2)",
        );
        let exists = exists
            .query()
            .bind(names.schema().to_owned())
            .bind(format!("{}_sees_all", names.table()));
        let exists: bool = exists.fetch_one(&mut *connection).await?.try_get(0)?;
        if !may_ask || !exists {
            return Ok(None);
        }
        let sees_all = sql("SELECT \"outbox\".\"outbox_sees_all\"()");
        sees_all.query().fetch_one(connection).await?.try_get(0).map(Some)
    }
}

/// The functions that a relay calls, less the table's name: those of the migrations that are nobody else's part.
fn relay_functions() -> Vec<&'static str> {
    let others = |name: &str| {
        [
            "functions",
            "tenant_tables",
            "revoke",
            "regrant",
            "wake",
            "audit_final",
            "forget_mark",
        ]
        .contains(&name)
            || ["grant", "enable", "disable", "publish", "receive"]
                .iter()
                .any(|first| name.split('_').next() == Some(first))
    };
    functions().filter(|name| !others(name)).collect()
}
