//! Roles with an outbox of their own: an owner who is no superuser, and those it grants to.

use outbox_core::{NewEvent, PublishError, Published, TenantId};
use outbox_dev::TestDatabase;
use outbox_pg::{Names, PgPublisher, PgSource, PgSourceBuilder, migrate};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

/// A database whose outbox belongs to a role of its own, and roles named after it.
pub(crate) struct Cast {
    pub(crate) database: TestDatabase,
    pub(crate) publisher: PgPublisher,
}

/// Of every role. The gate looks for it in the output of all tests.
const PASSWORD: &str = "planted-secret-0815";

/// The roles of a cast.
pub(crate) const ROLES: [&str; 6] = ["owner", "publisher", "handler", "relay", "reader", "stranger"];

impl Cast {
    /// Everyone has what the owner grants, and no more. Tenants are not isolated yet.
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::create().await.expect("a database for the test");
        let cast = Self {
            database,
            publisher: PgPublisher::new(&Names::default()),
        };
        for part in ROLES {
            let role = cast.role(part);
            cast.as_admin(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'"))
                .await;
        }
        let grant = format!(
            "GRANT CREATE ON DATABASE {} TO {}",
            cast.database.name(),
            cast.role("owner")
        );
        cast.as_admin(&grant).await;
        migrate(&mut cast.connect("owner").await, &Names::default())
            .await
            .expect("migrations by a plain owner");
        for part in ["publisher", "handler", "relay", "reader"] {
            cast.grant(part, &cast.role(part)).await;
        }
        cast
    }

    pub(crate) fn role(&self, part: &str) -> String {
        format!("{}_{part}", self.database.name())
    }

    pub(crate) fn options(&self, part: &str) -> PgConnectOptions {
        self.database
            .connect_options()
            .username(&self.role(part))
            .password(PASSWORD)
    }

    pub(crate) async fn connect(&self, part: &str) -> PgConnection {
        PgConnection::connect_with(&self.options(part))
            .await
            .expect("a connection")
    }

    pub(crate) fn source(&self, part: &str) -> PgSourceBuilder {
        PgSource::builder(self.options(part)).poll_only()
    }

    pub(crate) async fn grant(&self, part: &str, role: &str) {
        self.run("owner", &format!("SELECT outbox.outbox_grant_{part}('{role}')"))
            .await
            .expect("a grant");
    }

    pub(crate) async fn isolate_tenants(&self) {
        self.run("owner", "SELECT outbox.outbox_enable_tenants()")
            .await
            .expect("tenants");
    }

    /// Runs statements as a role; an error is its SQLSTATE.
    pub(crate) async fn run(&self, part: &str, sql: &str) -> Result<(), String> {
        run_on(&mut self.connect(part).await, sql).await
    }

    /// The first column of what a role finds, in a transaction of that tenant.
    pub(crate) async fn find(&self, part: &str, tenant: &str, sql: &str) -> Vec<String> {
        let mut connection = self.connect(part).await;
        let mut transaction = connection.begin().await.unwrap();
        set_tenant(&mut transaction, tenant).await;
        let rows = sqlx::query(AssertSqlSafe(sql.to_owned()))
            .fetch_all(&mut *transaction)
            .await
            .expect(sql);
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Publishes as the publisher, in a transaction of that tenant; an empty one sets nothing.
    pub(crate) async fn publish(&self, tenant: &str, event: NewEvent) -> Result<Published, String> {
        let mut connection = self.connect("publisher").await;
        let mut transaction = connection.begin().await.unwrap();
        if !tenant.is_empty() {
            set_tenant(&mut transaction, tenant).await;
        }
        let published = self.publisher.publish(&mut transaction, event).await;
        let published = published.map_err(|error| publish_state(&error))?;
        transaction.commit().await.unwrap();
        Ok(published)
    }

    pub(crate) async fn as_admin(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(self.database.pool())
            .await
            .expect(sql);
    }

    pub(crate) async fn count(&self, condition: &str) -> i64 {
        let sql = format!("SELECT count(*) FROM outbox.outbox WHERE {condition}");
        sqlx::query(AssertSqlSafe(sql))
            .fetch_one(self.database.pool())
            .await
            .unwrap()
            .get(0)
    }

    /// Roles outlive databases.
    pub(crate) async fn leave(self) {
        for part in ROLES {
            let role = self.role(part);
            self.as_admin(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"))
                .await;
        }
    }
}

pub(crate) async fn run_on(connection: &mut PgConnection, sql: &str) -> Result<(), String> {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await;
    done.map(|_| ()).map_err(|error| state(&error))
}

pub(crate) async fn set_tenant(connection: &mut PgConnection, tenant: &str) {
    sqlx::query("SELECT set_config('app.current_tenant', $1, true)")
        .bind(tenant)
        .execute(connection)
        .await
        .unwrap();
}

pub(crate) async fn tenant(connection: &mut PgConnection) -> String {
    sqlx::query_scalar("SELECT coalesce(current_setting('app.current_tenant', true), '')")
        .fetch_one(connection)
        .await
        .unwrap()
}

fn state(error: &sqlx::Error) -> String {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    code.map_or_else(|| error.to_string(), |code| code.into_owned())
}

fn publish_state(error: &PublishError) -> String {
    match error {
        PublishError::Store(cause) => cause
            .downcast_ref::<sqlx::Error>()
            .map_or_else(|| cause.to_string(), state),
        other => other.to_string(),
    }
}

pub(crate) fn of_tenant(event: NewEvent, tenant: &str) -> NewEvent {
    event.with_tenant(TenantId::new(tenant).unwrap())
}
