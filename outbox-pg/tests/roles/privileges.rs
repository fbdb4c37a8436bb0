//! Everything that each role may do with everything of ours, and nothing beside it. That they are refused the rest is
//! tried in `main.rs`.

use sqlx::AssertSqlSafe;

use crate::cast::Cast;

/// "PRIVILEGE object" for whatever a role may do. Columns are named where not all of the table's are meant.
const MAY: &str = include_str!("../support/privileges.sql");

async fn may(cast: &Cast, role: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(MAY))
        .bind(role)
        .fetch_all(cast.database.pool())
        .await
        .expect("what it may")
}

const PUBLISHER: [&str; 7] = [
    "EXECUTE outbox_check_event",
    "EXECUTE outbox_publish",
    "EXECUTE outbox_publish_headers",
    "EXECUTE outbox_publish_id",
    "EXECUTE outbox_publish_text",
    "INSERT outbox (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, class, available_at)",
    "USAGE schema",
];
const HANDLER: [&str; 5] = [
    "EXECUTE outbox_receive",
    "EXECUTE outbox_receive_all",
    "INSERT processed_events",
    "SELECT processed_events",
    "USAGE schema",
];
const READER: [&str; 2] = [
    "SELECT outbox (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, status, class, available_at, retry_count, claim_count, done_parts, error, created_at, processed_at, discarded_at)",
    "USAGE schema",
];
/// Beside the functions that are nobody else's.
const RELAY: [&str; 28] = [
    "DELETE outbox",
    "DELETE outbox_block",
    "DELETE outbox_lease",
    "DELETE processed_events",
    "INSERT outbox_audit (action, filter, reason, actor, events, finished_at)",
    "INSERT outbox_block",
    "INSERT outbox_lease",
    "SELECT outbox",
    "SELECT outbox_audit",
    "SELECT outbox_block",
    "SELECT outbox_lease",
    "SELECT outbox_lease_mark",
    "SELECT outbox_lease_number",
    "SELECT outbox_mark",
    "SELECT outbox_migration",
    "SELECT outbox_seq",
    "SELECT outbox_swept",
    "SELECT outbox_swept_of",
    "SELECT processed_events",
    "UPDATE outbox (status, class, available_at, retry_count, claim_count, alone, done_parts, error, processed_at, discarded_at)",
    "UPDATE outbox_audit (events, reached, finished_at)",
    "UPDATE outbox_block",
    "UPDATE outbox_lease",
    "UPDATE outbox_lease_mark",
    "UPDATE outbox_mark",
    "UPDATE outbox_swept",
    "UPDATE outbox_swept_of",
    "USAGE schema",
];
/// What the owner alone may call. A new function is either in here, or some role's.
const OWNER_ALONE: [&str; 13] = [
    "EXECUTE outbox_audit_final",
    "EXECUTE outbox_disable_tenants",
    "EXECUTE outbox_enable_tenants",
    "EXECUTE outbox_forget_mark",
    "EXECUTE outbox_functions",
    "EXECUTE outbox_grant_handler",
    "EXECUTE outbox_grant_publisher",
    "EXECUTE outbox_grant_reader",
    "EXECUTE outbox_grant_relay",
    "EXECUTE outbox_regrant",
    "EXECUTE outbox_revoke",
    "EXECUTE outbox_tenant_tables",
    "EXECUTE outbox_wake",
];

#[tokio::test]
async fn each_role_may_do_exactly_this() {
    let cast = Cast::new().await;

    for tenants in [false, true] {
        if tenants {
            cast.isolate_tenants().await;
        }
        assert_eq!(may(&cast, &cast.role("publisher")).await, PUBLISHER);
        assert_eq!(may(&cast, &cast.role("handler")).await, HANDLER);
        assert_eq!(may(&cast, &cast.role("reader")).await, READER);
        assert_eq!(may(&cast, &cast.role("stranger")).await, Vec::<String>::new());
        let (calls, rest): (Vec<String>, Vec<String>) = may(&cast, &cast.role("relay"))
            .await
            .into_iter()
            .partition(|deed| deed.starts_with("EXECUTE "));
        assert_eq!(rest, RELAY);
        let mut owner = may(&cast, &cast.role("owner")).await;
        owner.retain(|deed| deed.starts_with("EXECUTE "));
        let others = |deed: &String| {
            let deed = deed.as_str();
            calls.iter().any(|call| call == deed) || PUBLISHER.contains(&deed) || HANDLER.contains(&deed)
        };
        owner.retain(|deed| !others(deed));
        assert_eq!(owner, OWNER_ALONE);
    }
    cast.leave().await;
}
