//! Two tenants, and a handler of one: neither what the other has, nor whether it has it.

use outbox_core::EventId;
use sqlx::Connection;

use crate::cast::{self, Cast, of_tenant, set_tenant};
use crate::{DENIED, event};

/// Runs a statement as the handler of an event of that tenant.
async fn handling(cast: &Cast, tenant: &str, sql: &str) -> Result<(), String> {
    let mut connection = cast.connect("handler").await;
    let mut transaction = connection.begin().await.unwrap();
    set_tenant(&mut transaction, tenant).await;
    let done = cast::run_on(&mut transaction, sql).await;
    transaction.commit().await.unwrap();
    done
}

#[tokio::test]
async fn a_handler_finds_out_nothing_of_another_tenant() {
    let cast = Cast::new().await;
    let handler = cast.role("handler");
    cast.grant("publisher", &handler).await;
    cast.grant("reader", &handler).await;
    cast.isolate_tenants().await;
    let (known, unknown) = (EventId::new(), EventId::new());
    cast.publish("b", event("1").with_id(known)).await.unwrap();
    let receive =
        |tenant: &str, id: EventId| format!("SELECT outbox.outbox_receive('{tenant}', 'billing', '{id}')");
    handling(&cast, "b", &receive("b", known)).await.unwrap();

    // The same answer whether the other tenant has that id or not.
    for id in [known, unknown] {
        let insert = format!(
            "INSERT INTO outbox.outbox (id, tenant_id, event_type, payload) VALUES ('{id}', 'b', 'Counted', '1')"
        );
        let remember = format!(
            "INSERT INTO outbox.processed_events (tenant_id, handler, event_id) VALUES ('b', 'billing', '{id}')"
        );
        for attempt in [insert, remember] {
            let done = handling(&cast, "a", &attempt).await;
            assert_eq!(done, Err(DENIED.to_owned()), "{attempt}");
        }
        for table in ["outbox.outbox WHERE id", "outbox.processed_events WHERE event_id"] {
            let look = format!("SELECT tenant_id FROM {table} = '{id}'");
            assert_eq!(
                cast.find("handler", "a", &look).await,
                Vec::<String>::new(),
                "{look}"
            );
        }
    }
    // And the id is free for its own.
    handling(&cast, "a", &receive("a", known)).await.unwrap();
    cast.publish("a", event("1").with_id(known)).await.unwrap();
    let mine = of_tenant(event("1").with_id(unknown), "a");
    cast.publish("a", mine).await.unwrap();
    let seen = cast
        .find("handler", "a", "SELECT DISTINCT tenant_id FROM outbox.outbox")
        .await;
    assert_eq!(seen, ["a"]);
    cast.leave().await;
}
