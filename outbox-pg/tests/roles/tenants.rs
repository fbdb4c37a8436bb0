//! Tenants that are isolated: what each sees, and what relays, handlers and publishers do then.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Context, Delivered, Delivery, Dispatcher, Envelope, Event, EventId, EventType, Failure, Handler,
    HandlerError, PartName, Payload, Published, Relay, SourceErrorKind, State, TenantId,
};
use outbox_pg::{Names, PgInbox, PgSource, PublishFollowUp, StartError};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, Row};

use crate::cast::{self, Cast, of_tenant, set_tenant, tenant};
use crate::{DENIED, INSERT, event};

#[tokio::test]
async fn a_relay_that_cannot_see_every_tenant_refuses_to_start() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    cast.run("owner", "DROP POLICY outbox_relay ON outbox.outbox")
        .await
        .unwrap();

    // The owner may do everything, and is bound by the policy like everyone.
    for part in ["relay", "owner"] {
        let refused = cast.source(part).start().await.unwrap_err();
        let StartError::Blind { role, remedy, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(role, cast.role(part));
        cast.run("owner", &remedy).await.unwrap();
        cast.source(part).start().await.unwrap();
    }
    cast.leave().await;
}

#[tokio::test]
async fn a_start_is_not_kept_waiting_for_ever_by_a_lock_on_the_tables() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    let mut keeper = cast.connect("owner").await;
    cast::run_on(&mut keeper, "BEGIN").await.unwrap();
    cast::run_on(&mut keeper, "LOCK TABLE outbox.outbox")
        .await
        .unwrap();

    let start = cast.source("relay").deadline(Duration::from_millis(500)).start();
    let refused = tokio::time::timeout(Duration::from_secs(60), start)
        .await
        .unwrap();

    let StartError::Source(refused) = refused.unwrap_err() else {
        panic!("the role may do everything");
    };
    assert_eq!(refused.kind(), SourceErrorKind::Unavailable);
    keeper.close().await.unwrap();
    cast.source("relay").start().await.unwrap();
    cast.leave().await;
}

/// Remembers tenants and payloads.
#[derive(Default)]
struct Recorder(Mutex<Vec<String>>);

#[async_trait]
impl Dispatcher for Recorder {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        let envelope = &delivery.envelope;
        let seen = format!("{}{}", envelope.tenant_id.as_str(), envelope.payload.as_str());
        self.0.lock().unwrap().push(seen);
        Ok(Delivered::Handled)
    }
}

async fn drain(cast: &Cast, source: PgSource) -> Vec<String> {
    let recorder = Arc::new(Recorder::default());
    let relay = Relay::builder(Arc::new(source), recorder.clone())
        .build()
        .unwrap()
        .spawn();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while cast.count("status = 'pending'").await > 0 {
        assert!(tokio::time::Instant::now() < deadline, "events stay pending");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    relay.shutdown().await.unwrap();
    let mut seen = recorder.0.lock().unwrap().clone();
    seen.sort();
    seen
}

#[tokio::test]
async fn the_relay_drains_every_tenant_by_its_policy_or_by_bypassrls() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    let publish = async |n: &str| {
        cast.publish("a", event(n)).await.unwrap();
        cast.publish("b", event(n)).await.unwrap();
    };

    publish("1").await;
    let by_policy = drain(&cast, cast.source("relay").start().await.unwrap()).await;

    cast.run("owner", "DROP POLICY outbox_relay ON outbox.outbox")
        .await
        .unwrap();
    cast.as_admin(&format!("ALTER ROLE {} BYPASSRLS", cast.role("relay")))
        .await;
    publish("2").await;
    let by_attribute = drain(&cast, cast.source("relay").start().await.unwrap()).await;

    assert_eq!(by_policy, ["a1", "b1"]);
    assert_eq!(by_attribute, ["a2", "b2"]);
    cast.leave().await;
}

#[tokio::test]
async fn an_unset_or_empty_tenant_is_denied_and_never_matches() {
    let cast = Cast::new().await;
    // From before there were tenants.
    cast.publish("", event("0")).await.unwrap();
    cast.isolate_tenants().await;
    cast.publish("a", event("1")).await.unwrap();

    assert_eq!(cast.publish("", event("2")).await, Err(DENIED.to_owned()));
    assert_eq!(cast.run("publisher", INSERT).await, Err(DENIED.to_owned()));
    let emptied = format!("SET app.current_tenant = ''; {INSERT}");
    assert_eq!(cast.run("publisher", &emptied).await, Err(DENIED.to_owned()));
    for part in ["reader", "owner"] {
        let seen = cast.find(part, "", "SELECT status FROM outbox.outbox").await;
        assert_eq!(seen, Vec::<String>::new(), "{part}");
    }
    // What was set locally is empty after its transaction, not unset.
    let mut connection = cast.connect("publisher").await;
    let mut transaction = connection.begin().await.unwrap();
    set_tenant(&mut transaction, "a").await;
    cast.publisher
        .publish(&mut transaction, event("3"))
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert!(cast.publisher.publish(&mut connection, event("4")).await.is_err());
    assert_eq!(cast.count("true").await, 3);
    cast.leave().await;
}

#[tokio::test]
async fn two_tenants_learn_nothing_of_each_other() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    let id = EventId::new();
    let new = Ok(Published::of(1, 1));

    // Writing for the other one is refused, whether its id is taken or not.
    assert_eq!(cast.publish("a", event("1").with_id(id)).await, new);
    for other in [id, EventId::new()] {
        let event = of_tenant(event("9").with_id(other), "a");
        assert_eq!(cast.publish("b", event).await, Err(DENIED.to_owned()));
    }
    // The same id is new to the other tenant, and known to its own.
    assert_eq!(cast.publish("b", event("2").with_id(id)).await, new);
    assert_eq!(
        cast.publish("a", event("3").with_id(id)).await,
        Ok(Published::of(0, 1))
    );
    assert_eq!(
        cast.publish("b", event("3").with_id(id)).await,
        Ok(Published::of(0, 1))
    );

    for mine in ["a", "b"] {
        let seen = cast
            .find("reader", mine, "SELECT tenant_id FROM outbox.outbox")
            .await;
        assert_eq!(seen, [mine]);
        let counted = cast
            .find("reader", mine, "SELECT count(*)::text FROM outbox.outbox")
            .await;
        assert_eq!(counted, ["1"]);
    }
    let delivered = drain(&cast, cast.source("relay").start().await.unwrap()).await;
    assert_eq!(delivered, ["a1", "b2"]);
    cast.leave().await;
}

/// A handler that counts the orders it can see, whatever the event is about, and publishes the count.
#[derive(serde::Serialize, serde::Deserialize)]
struct Counted(i64);

impl Event for Counted {
    const EVENT_TYPE: &'static str = "Counted";
}

async fn count_orders(_: Counted, tx: &mut PgConnection, ctx: Context) -> Result<(), HandlerError> {
    let row = sqlx::query("SELECT count(*) FROM orders")
        .fetch_one(&mut *tx)
        .await?;
    ctx.publish(tx, &Counted(row.get(0))).await?;
    Ok(())
}

fn context(tenant: &str, event_id: EventId) -> Context {
    let event_type = EventType::new(Counted::EVENT_TYPE).unwrap();
    let created_at = jiff::Timestamp::UNIX_EPOCH;
    let mut envelope = Envelope::new(event_id, event_type, Payload::from_json("0"), created_at);
    envelope.tenant_id = TenantId::new(tenant).unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let delivery = Delivery::new(Arc::new(envelope), deadline);
    Context::new(Arc::new(delivery), Arc::new(State::default())).with_part(PartName::new("count").unwrap())
}

#[tokio::test]
async fn a_transactional_handler_sees_the_tenant_of_its_event_and_no_other() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    let handler = cast.role("handler");
    cast.grant("publisher", &handler).await;
    cast.as_admin(&format!(
        "CREATE TABLE orders (tenant_id text); INSERT INTO orders VALUES ('a'), ('b'), ('b'), ('c');
         ALTER TABLE orders ENABLE ROW LEVEL SECURITY; GRANT SELECT ON orders TO {handler};
         CREATE POLICY mine ON orders USING (tenant_id = current_setting('app.current_tenant', true))"
    ))
    .await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(cast.options("handler"));
    let inbox = PgInbox::new(pool.await.unwrap(), &Names::default());
    let counting = inbox.transactional(count_orders);
    let id = EventId::new();

    // The same id in two tenants, on one connection, and a second delivery.
    for tenant in ["b", "a", "b"] {
        counting.handle(Counted(0), context(tenant, id)).await.unwrap();
    }

    let published = drain(&cast, cast.source("relay").start().await.unwrap()).await;
    assert_eq!(published, ["a1", "b2"]);
    for tenant in ["a", "b", "c"] {
        let known = cast
            .find("handler", tenant, "SELECT tenant_id FROM outbox.processed_events")
            .await;
        assert_eq!(known, if tenant == "c" { vec![] } else { vec![tenant] });
    }
    cast.leave().await;
}

#[tokio::test]
async fn a_publisher_sets_its_tenant_for_the_event_alone() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    let mut connection = cast.connect("publisher").await;
    let mut transaction = connection.begin().await.unwrap();

    let events = [("1", "a"), ("2", "b"), ("3", "a")].map(|(n, tenant)| of_tenant(event(n), tenant));
    let many = cast
        .publisher
        .publish_all(&mut transaction, events)
        .await
        .unwrap();
    let after_many = tenant(&mut transaction).await;
    let one = cast
        .publisher
        .publish(&mut transaction, of_tenant(event("4"), "c"))
        .await
        .unwrap();
    let after_one = tenant(&mut transaction).await;
    transaction.commit().await.unwrap();

    assert_eq!((many, one), (Published::of(3, 3), Published::of(1, 1)));
    assert_eq!((after_many.as_str(), after_one.as_str()), ("", ""));
    let all = drain(&cast, cast.source("relay").start().await.unwrap()).await;
    assert_eq!(all, ["a1", "a3", "b2", "c4"]);
    cast.leave().await;
}

#[tokio::test]
async fn a_publisher_without_a_tenant_inherits_that_of_the_transaction_and_leaves_it() {
    let cast = Cast::new().await;
    cast.isolate_tenants().await;
    let mut connection = cast.connect("publisher").await;
    let mut transaction = connection.begin().await.unwrap();
    set_tenant(&mut transaction, "a").await;

    cast.publisher
        .publish(&mut transaction, event("1"))
        .await
        .unwrap();
    let events = [event("2"), of_tenant(event("3"), "a")];
    cast.publisher
        .publish_all(&mut transaction, events)
        .await
        .unwrap();
    cast::run_on(&mut transaction, INSERT).await.unwrap();
    let after = tenant(&mut transaction).await;
    transaction.commit().await.unwrap();

    assert_eq!(after, "a");
    assert_eq!(cast.count("tenant_id = 'a'").await, 4);
    assert_eq!(cast.count("true").await, 4);
    cast.leave().await;
}

#[tokio::test]
async fn tenants_can_be_switched_off_again_and_tables_without_them_work_as_before() {
    let cast = Cast::new().await;
    cast.publish("", event("1")).await.unwrap();
    cast.isolate_tenants().await;
    cast.isolate_tenants().await;
    cast.publish("a", event("2")).await.unwrap();
    cast.run("owner", "SELECT outbox.outbox_disable_tenants()")
        .await
        .unwrap();

    cast.publish("", event("3")).await.unwrap();
    cast.run("publisher", INSERT).await.unwrap();

    assert_eq!(cast.count("tenant_id = ''").await, 3);
    let all = drain(&cast, cast.source("relay").start().await.unwrap()).await;
    assert_eq!(all, ["1", "1", "3", "a2"]);
    cast.leave().await;
}
