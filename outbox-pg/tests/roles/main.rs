//! Who may do what, and which tenant sees which events.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

mod blind;
#[path = "../support/cast.rs"]
mod cast;
mod hidden;
mod privileges;
mod tenants;

use cast::{Cast, ROLES};
use outbox_core::{EventType, NewEvent, Payload};
use outbox_pg::StartError;
use sqlx::Connection;

const DENIED: &str = "42501";

fn event(json: &str) -> NewEvent {
    NewEvent::raw(EventType::new("Counted").unwrap(), Payload::from_json(json))
}

const INSERT: &str =
    "INSERT INTO outbox.outbox (id, event_type, payload) VALUES (gen_random_uuid(), 'Counted', '1')";

/// What each part may do, and nobody else but the owner.
const DEEDS: [(&str, &[&str]); 34] = [
    (INSERT, &["publisher"]),
    (
        "INSERT INTO outbox.outbox (id, event_type, payload, status) VALUES (gen_random_uuid(), 'Counted', '1', 'completed')",
        &[],
    ),
    (
        "SELECT id, status, error FROM outbox.outbox",
        &["relay", "reader"],
    ),
    ("SELECT payload FROM outbox.outbox", &["relay"]),
    ("SELECT headers FROM outbox.outbox", &["relay"]),
    ("SELECT seq FROM outbox.outbox", &["relay"]),
    ("SELECT ctid FROM outbox.outbox", &["relay"]),
    ("UPDATE outbox.outbox SET error = ''", &["relay"]),
    ("UPDATE outbox.outbox SET payload = '1'", &[]),
    ("UPDATE outbox.outbox SET tenant_id = 'b'", &[]),
    ("UPDATE outbox.outbox SET event_type = 'Paid'", &[]),
    ("DELETE FROM outbox.outbox", &["relay"]),
    ("TRUNCATE outbox.outbox", &[]),
    ("SELECT FROM outbox.outbox_lease", &["relay"]),
    ("DELETE FROM outbox.outbox_lease", &["relay"]),
    ("SELECT FROM outbox.outbox_block", &["relay"]),
    ("SELECT FROM outbox.outbox_audit", &["relay"]),
    ("DELETE FROM outbox.outbox_audit", &[]),
    (
        "SELECT outbox.outbox_act(outbox.outbox_begin_action('redrive', '{}'), 1)",
        &["relay"],
    ),
    ("UPDATE outbox.outbox_audit SET actor = 'eve', reason = ''", &[]),
    ("UPDATE outbox.outbox_audit SET role = 'postgres'", &[]),
    ("UPDATE outbox.outbox_audit SET created_at = now()", &[]),
    (
        "INSERT INTO outbox.outbox_audit (action, filter, reason, actor, role) VALUES ('prune', '{}', '', '', 'postgres')",
        &[],
    ),
    ("UPDATE outbox.outbox_migration SET name = ''", &[]),
    ("SELECT FROM outbox.processed_events", &["relay", "handler"]),
    (
        "SELECT outbox.outbox_receive('a', 'billing', gen_random_uuid())",
        &["handler"],
    ),
    ("UPDATE outbox.processed_events SET handler = ''", &[]),
    ("DELETE FROM outbox.processed_events", &["relay"]),
    ("SELECT setval('outbox.outbox_mark', 1)", &["relay"]),
    ("SELECT nextval('outbox.outbox_seq')", &[]),
    ("SELECT outbox.outbox_sees_all()", &["relay"]),
    ("SELECT outbox.outbox_status()", &["relay"]),
    ("SELECT outbox.outbox_grant_relay(current_user)", &[]),
    ("ALTER TABLE outbox.outbox DISABLE ROW LEVEL SECURITY", &[]),
];

#[tokio::test]
async fn each_role_does_its_part_and_is_refused_everything_else() {
    let cast = Cast::new().await;

    let mut wrong = Vec::new();
    for part in ROLES.into_iter().filter(|part| *part != "owner") {
        let mut connection = cast.connect(part).await;
        for (deed, doers) in DEEDS {
            let mut transaction = connection.begin().await.unwrap();
            let done = cast::run_on(&mut transaction, deed).await;
            transaction.rollback().await.unwrap();
            let expected = if doers.contains(&part) {
                Ok(())
            } else {
                Err(DENIED.to_owned())
            };
            // ALTER TABLE reports a missing ownership by the same code.
            if done != expected {
                wrong.push(format!("{part}: {deed}: {done:?}"));
            }
        }
    }

    assert_eq!(wrong, Vec::<String>::new());
    cast.leave().await;
}

#[tokio::test]
async fn what_the_audit_says_of_a_finished_action_stays() {
    let cast = Cast::new().await;
    let finished = "SELECT outbox.outbox_pause('type', '', 'Counted', 'incident', 'ada')";
    cast.run("relay", finished).await.unwrap();
    let begun = "SELECT outbox.outbox_begin_action('redrive', '{}', 'gateway is back', 'ada')";
    cast.run("relay", begun).await.unwrap();
    let counted = "UPDATE outbox.outbox_audit SET events = 7 WHERE finished_at IS NULL";
    cast.run("relay", counted).await.unwrap();

    for part in ["relay", "owner"] {
        for change in [
            "UPDATE outbox.outbox_audit SET events = 8 WHERE finished_at IS NOT NULL",
            "UPDATE outbox.outbox_audit SET finished_at = NULL WHERE finished_at IS NOT NULL",
            "UPDATE outbox.outbox_audit SET events = 6 WHERE finished_at IS NULL",
        ] {
            assert_eq!(
                cast.run(part, change).await,
                Err(DENIED.to_owned()),
                "{part}: {change}"
            );
        }
    }

    let told = "SELECT concat_ws(' ', action, actor, events, role = current_user) FROM outbox.outbox_audit ORDER BY number";
    let told = cast.find("relay", "", told).await;
    assert_eq!(told, ["pause ada 0 t", "redrive ada 7 t"]);
    cast.leave().await;
}

#[tokio::test]
async fn no_function_of_ours_is_open_to_everybody() {
    let cast = Cast::new().await;

    let open = cast
        .find(
            "owner",
            "",
            "SELECT function::text FROM outbox.outbox_functions() JOIN pg_proc ON pg_proc.oid = function \
             WHERE proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) AS granted WHERE granted.grantee = 0)",
        )
        .await;

    assert_eq!(open, Vec::<String>::new());
    cast.leave().await;
}

#[tokio::test]
async fn everybody_is_no_relay() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    cast.run(
        "owner",
        &format!("SELECT outbox.outbox_revoke('{}')", cast.role("relay")),
    )
    .await
    .unwrap();
    cast.publish("b", event("1")).await.unwrap();

    let granted = cast
        .run("owner", "SELECT outbox.outbox_grant_relay('public')")
        .await;

    assert_eq!(granted, Err("22023".to_owned()));
    let seen = cast
        .find("reader", "a", "SELECT tenant_id FROM outbox.outbox")
        .await;
    assert_eq!(seen, Vec::<String>::new());
    cast.leave().await;
}

#[tokio::test]
async fn what_was_granted_can_be_taken_back() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;

    for part in ["publisher", "handler", "relay", "reader"] {
        let role = cast.role(part);
        cast.run("owner", &format!("SELECT outbox.outbox_revoke('{role}')"))
            .await
            .unwrap();
    }

    for part in ["publisher", "handler", "relay", "reader"] {
        for (deed, _) in DEEDS {
            assert_eq!(
                cast.run(part, deed).await,
                Err(DENIED.to_owned()),
                "{part}: {deed}"
            );
        }
    }
    cast.leave().await;
}

#[tokio::test]
async fn a_relay_that_lacks_rights_is_told_which_and_the_remedy_works() {
    let cast = Cast::new().await;
    let stranger = cast.role("stranger");

    let refused = cast.source("stranger").start().await.unwrap_err();
    let StartError::Rights { missing, remedy, .. } = &refused else {
        panic!("{refused}");
    };
    assert!(
        missing.iter().any(|right| right == "USAGE on schema outbox"),
        "{missing:?}"
    );
    assert!(
        missing
            .iter()
            .any(|right| right.ends_with("on table outbox.outbox")),
        "{missing:?}"
    );
    assert_eq!(
        remedy,
        &format!("SELECT \"outbox\".\"outbox_grant_relay\"('{stranger}')")
    );

    cast.run("owner", remedy).await.unwrap();
    cast.source("stranger").start().await.unwrap();
    cast.run(
        "owner",
        &format!("REVOKE UPDATE ON SEQUENCE outbox.outbox_mark FROM {stranger}"),
    )
    .await
    .unwrap();
    let refused = cast.source("stranger").start().await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "role {stranger} lacks UPDATE on sequence outbox.outbox_mark; let the owner of the tables run: {remedy}"
        )
    );
    cast.leave().await;
}
