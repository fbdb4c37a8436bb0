//! Many events in one transaction.

use super::*;

#[tokio::test]
async fn a_batch_handler_gets_many_events_in_one_transaction() {
    let world = world().await;
    let calls = Arc::new(AtomicU32::new(0));
    let counting = Counting(Arc::clone(&calls));
    let registry = Registry::new().on::<OrderPlaced>("billing", inbox(&world).batched(counting));
    place(&world, 100..2100).await;

    let relay = relay(&world, registry).await;

    world.until("status = 'completed'", 2000).await;
    relay.shutdown().await.unwrap();
    assert_eq!(
        number(world.pool(), "SELECT count(DISTINCT event_id) FROM effects").await,
        2000
    );
    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 2000);
    let calls = calls.load(Ordering::SeqCst);
    assert!(calls <= 500, "{calls} transactions for 2000 events");
}

pub(crate) async fn bill_all(
    events: Vec<(OrderPlaced, Context)>,
    tx: &mut PgConnection,
) -> Result<(), HandlerError> {
    let ids: Vec<_> = events.iter().map(|(_, ctx)| ctx.event_id().as_uuid()).collect();
    let orders: Vec<i64> = events.iter().map(|(event, _)| event.order).collect();
    if orders.contains(&13) {
        return Err(HandlerError::reject("thirteen"));
    }
    assert!(!orders.contains(&17), "seventeen");
    sqlx::query("INSERT INTO effects (handler, event_id, number) SELECT 'billing', * FROM unnest($1, $2)")
        .bind(ids)
        .bind(orders)
        .execute(tx)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_bad_event_in_a_batch_harms_only_itself() {
    let world = world().await;
    let once = RetryPolicy::none();
    let options = outbox_inproc::HandlerOptions::new("billing").with_retry(once);
    let registry = Registry::new().on::<OrderPlaced>(options, inbox(&world).batched(bill_all));
    place(&world, 0..50).await;

    let relay = relay(&world, registry).await;

    world.until("status <> 'pending'", 50).await;
    relay.shutdown().await.unwrap();
    assert_eq!(world.count("status = 'failed'").await, 2);
    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 48);
    assert_eq!(
        number(
            world.pool(),
            "SELECT count(*) FROM effects WHERE number IN (13, 17)"
        )
        .await,
        0
    );
}

/// Holds the first batch until it is let go, so that the next one gathers behind it; never ends with order 13.
struct Hanging {
    first: AtomicU32,
    go: Notify,
    /// In a statement of the transaction, not only in this program.
    in_sql: bool,
}

impl TxBatchHandler<OrderPlaced> for Arc<Hanging> {
    async fn handle(
        &self,
        events: Vec<(OrderPlaced, Context)>,
        tx: &mut PgConnection,
    ) -> Result<(), HandlerError> {
        if self.first.fetch_add(1, Ordering::SeqCst) == 0 {
            self.go.notified().await;
        }
        if events.iter().any(|(event, _)| event.order == 13) {
            if self.in_sql {
                sqlx::query("SELECT pg_sleep(600)").execute(&mut *tx).await?;
            }
            std::future::pending::<()>().await;
        }
        bill_all(events, tx).await
    }
}

#[tokio::test]
async fn of_a_batch_that_hangs_only_the_event_to_blame_is_charged() {
    only_the_event_to_blame_is_charged(false).await;
}

#[tokio::test]
async fn nor_are_others_of_a_batch_that_hangs_in_a_statement() {
    only_the_event_to_blame_is_charged(true).await;
}

async fn only_the_event_to_blame_is_charged(in_sql: bool) {
    let world = world().await;
    let hanging = Arc::new(Hanging {
        first: AtomicU32::new(0),
        go: Notify::new(),
        in_sql,
    });
    let handler = Arc::new(inbox(&world).batched(Arc::clone(&hanging)));
    let deliver = |order: i64| {
        let ctx = context_within(Duration::from_secs(8), EventId::new(), "", order);
        let handler = Arc::clone(&handler);
        tokio::spawn(async move { handler.handle(OrderPlaced { order }, ctx).await })
    };
    let head = deliver(100);
    let until = async || {
        while hanging.first.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(Duration::from_secs(60), until())
        .await
        .unwrap();

    let others: Vec<_> = [1, 2, 3, 13, 4, 5].map(|order| (order, deliver(order))).into();
    // One turn of the only thread: all have joined the queue.
    tokio::task::yield_now().await;
    hanging.go.notify_one();

    head.await.unwrap().unwrap();
    for (order, delivery) in others {
        assert_eq!(delivery.await.unwrap().is_err(), order == 13, "{order}");
    }
    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 6);
}

#[tokio::test]
async fn an_event_that_is_twice_in_a_batch_is_handled_once() {
    let world = world().await;
    let handler = Arc::new(inbox(&world).batched(bill_all));
    let id = EventId::new();
    let deliver = |_: usize| {
        let (handler, ctx) = (Arc::clone(&handler), context(id, "", 1));
        tokio::spawn(async move { handler.handle(OrderPlaced { order: 1 }, ctx).await.is_ok() })
    };

    let deliveries: Vec<_> = (0..20).map(deliver).collect();
    for delivery in deliveries {
        assert!(delivery.await.unwrap());
    }

    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 1);
}
