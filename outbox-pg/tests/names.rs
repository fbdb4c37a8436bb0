//! Outboxes of other names, and several in one schema: each grants and takes back what is its own.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

#[path = "support/cast.rs"]
#[expect(dead_code, reason = "each test binary uses its part")]
mod cast;

use cast::Cast;
use outbox_core::{EventType, NewEvent, Payload};
use outbox_pg::{Names, PgPublisher, PgSource, migrate};

async fn migrated(cast: &Cast, schema: &str, table: &str) -> Names {
    let names = Names::new(schema, table).unwrap();
    migrate(&mut cast.connect("owner").await, &names)
        .await
        .expect("migrations");
    names
}

async fn start(cast: &Cast, part: &str, names: &Names) -> Result<PgSource, String> {
    let source = cast.source(part).names(names.clone());
    source.start().await.map_err(|error| error.to_string())
}

/// Runs a statement whose first `{}` is the role of a part.
async fn of_role(cast: &Cast, part: &str, statement: &str) {
    let statement = statement.replace("{}", &cast.role(part));
    cast.run("owner", &statement).await.expect(&statement);
}

/// Whether a role may do something in words of Postgres: `schema_privilege`, say.
async fn may(cast: &Cast, part: &str, what: &str, object: &str, privilege: &str) -> bool {
    let role = cast.role(part);
    let sql = format!("SELECT has_{what}('{role}', '{object}', '{privilege}')::text");
    cast.find("owner", "", &sql).await == ["true"]
}

#[tokio::test]
async fn every_part_is_granted_and_taken_back_where_schema_and_table_have_different_names() {
    let cast = Cast::new().await;
    // Named like the table, and none of our business.
    cast.run("owner", "CREATE SCHEMA events").await.unwrap();
    let names = migrated(&cast, "app", "events").await;
    for part in ["publisher", "handler", "relay", "reader"] {
        let grant = format!("SELECT app.events_grant_{part}('{{}}')");
        of_role(&cast, part, &grant).await;
        assert!(
            may(&cast, part, "schema_privilege", "app", "USAGE").await,
            "{part}"
        );
        assert!(
            !may(&cast, part, "schema_privilege", "events", "USAGE").await,
            "{part}"
        );
    }

    let event = NewEvent::raw(EventType::new("Counted").unwrap(), Payload::from_json("1"));
    let mut connection = cast.connect("publisher").await;
    PgPublisher::new(&names)
        .publish(&mut connection, event)
        .await
        .unwrap();
    start(&cast, "relay", &names).await.unwrap();
    cast.run("reader", "SELECT status FROM app.events").await.unwrap();
    let receive = "SELECT app.events_receive('', 'billing', gen_random_uuid())";
    cast.run("handler", receive).await.unwrap();

    for part in ["publisher", "handler", "relay", "reader"] {
        of_role(&cast, part, "SELECT app.events_revoke('{}')").await;
        assert!(
            !may(&cast, part, "schema_privilege", "app", "USAGE").await,
            "{part}"
        );
    }
    cast.leave().await;
}

#[tokio::test]
async fn outboxes_whose_names_begin_alike_leave_each_others_roles_alone() {
    let cast = Cast::new().await;
    let (first, second) = (Names::default(), migrated(&cast, "outbox", "outbox_b").await);
    let publish = "outbox.outbox_b_publish_id()";

    // Migrating and granting again gives nobody a part in the other one, and costs nobody theirs.
    start(&cast, "relay", &first).await.unwrap();
    for part in ["publisher", "handler", "relay"] {
        of_role(&cast, part, &format!("SELECT outbox.outbox_grant_{part}('{{}}')")).await;
    }
    assert!(!may(&cast, "publisher", "function_privilege", publish, "EXECUTE").await);
    let receive = "outbox.outbox_b_receive(text, text, uuid)";
    assert!(!may(&cast, "handler", "function_privilege", receive, "EXECUTE").await);
    assert!(start(&cast, "relay", &second).await.is_err());

    // Whoever works for both goes on with one when the other takes back its part.
    for part in ["publisher", "handler", "relay", "reader"] {
        of_role(
            &cast,
            part,
            &format!("SELECT outbox.outbox_b_grant_{part}('{{}}')"),
        )
        .await;
    }
    start(&cast, "relay", &second).await.unwrap();
    for part in ["publisher", "handler", "relay"] {
        of_role(&cast, part, "SELECT outbox.outbox_revoke('{}')").await;
    }
    start(&cast, "relay", &second).await.unwrap();
    assert!(start(&cast, "relay", &first).await.is_err());
    assert!(may(&cast, "publisher", "function_privilege", publish, "EXECUTE").await);
    let receive = "SELECT outbox.outbox_b_receive('', 'billing', gen_random_uuid())";
    cast.run("handler", receive).await.unwrap();

    for part in ["publisher", "handler", "relay"] {
        of_role(&cast, part, "SELECT outbox.outbox_b_revoke('{}')").await;
        assert!(
            !may(&cast, part, "schema_privilege", "outbox", "USAGE").await,
            "{part}"
        );
        let inbox = "outbox.processed_events";
        assert!(
            !may(&cast, part, "table_privilege", inbox, "SELECT, INSERT, DELETE").await,
            "{part}"
        );
    }
    cast.leave().await;
}

#[tokio::test]
async fn the_functions_that_are_ours_are_all_that_we_make_and_no_others() {
    let cast = Cast::new().await;
    let unknown = "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace \
         AND oid NOT IN (SELECT function FROM outbox.outbox_functions())";
    // A function of a migration that is missing in the list would be open to everybody.
    assert_eq!(cast.find("owner", "", unknown).await, Vec::<String>::new());

    let report = "CREATE FUNCTION outbox.outbox_report() RETURNS integer LANGUAGE sql RETURN 1";
    cast.run("owner", report).await.unwrap();
    cast.run("owner", "SELECT outbox.outbox_regrant()").await.unwrap();

    assert_eq!(cast.find("owner", "", unknown).await, ["outbox.outbox_report()"]);
    let report = "outbox.outbox_report()";
    assert!(may(&cast, "stranger", "function_privilege", report, "EXECUTE").await);
    start(&cast, "relay", &Names::default()).await.unwrap();
    cast.leave().await;
}
