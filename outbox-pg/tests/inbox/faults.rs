//! Replies that are lost, databases that are away, futures that are dropped.

use super::*;

#[tokio::test]
async fn a_commit_whose_reply_is_lost_has_one_effect() {
    let world = world().await;
    let options = world.database.connect_options();
    let target = format!("{}:{}", options.get_host(), options.get_port());
    let proxy = Proxy::start(target).await.unwrap();
    let through = options.clone().host("127.0.0.1").port(proxy.address().port());
    let pool = PgPoolOptions::new()
        .max_connections(4)
        .connect_with(through)
        .await
        .unwrap();
    let inbox = PgInbox::new(pool, &Names::default());
    let calls = Arc::new(AtomicU32::new(0));
    let counting = Counting(Arc::clone(&calls));
    let registry = Registry::new().on::<OrderPlaced>("billing", inbox.transactional(counting));
    let relay = relay(&world, registry).await;

    for order in 0..5 {
        proxy.set(Mode::CutReplyTo(b"COMMIT".to_vec()));
        place(&world, order..order + 1).await;
        world.until("status = 'completed'", order + 1).await;
        assert_eq!(proxy.mode(), Mode::Forward, "the cut has struck");
    }

    relay.shutdown().await.unwrap();
    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 5);
    assert_eq!(
        calls.load(Ordering::SeqCst),
        5,
        "what was committed is not handled again"
    );
    assert_eq!(
        world.count("retry_count > 0").await,
        0,
        "a lost connection costs no attempt"
    );
}

/// Runs this statement before it does its work, such as one that ends its transaction.
struct Ending(&'static str);

impl TxHandler<OrderPlaced> for Ending {
    async fn handle(
        &self,
        event: OrderPlaced,
        tx: &mut PgConnection,
        ctx: Context,
    ) -> Result<(), HandlerError> {
        sqlx::raw_sql(self.0).execute(&mut *tx).await?;
        bill(event, tx, ctx).await
    }
}

#[tokio::test]
async fn a_handler_that_ends_its_transaction_itself_fails_for_good() {
    let world = world().await;

    for end in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"] {
        let handler = inbox(&world).transactional(Ending(end));
        let ended = handler
            .handle(OrderPlaced { order: 1 }, context(EventId::new(), "", 1))
            .await;
        assert!(matches!(ended, Err(HandlerError::Reject(_))), "{end}: {ended:?}");
    }
    // A savepoint is the handler's own.
    let nesting = async |event: OrderPlaced, tx: &mut PgConnection, ctx: Context| {
        sqlx::raw_sql("SAVEPOINT mine; ROLLBACK TO mine")
            .execute(&mut *tx)
            .await?;
        bill(event, tx, ctx).await
    };
    let handler = inbox(&world).transactional(nesting);
    let context = context(EventId::new(), "", 1);
    handler.handle(OrderPlaced { order: 1 }, context).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_away_costs_no_attempts() {
    let world = world().await;
    let nowhere = world.database.connect_options().port(1);
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy_with(nowhere);
    let handler = PgInbox::new(pool, &Names::default()).transactional(bill);

    let end = handler
        .handle(OrderPlaced { order: 1 }, context(EventId::new(), "", 1))
        .await;

    assert!(matches!(end, Err(HandlerError::Outage(_))), "{end:?}");
}

#[tokio::test]
async fn a_pool_without_a_free_connection_costs_no_attempts() {
    let world = world().await;
    let options = world.database.connect_options();
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .unwrap();
    let taken = pool.acquire().await.unwrap();
    let inbox = PgInbox::new(pool.clone(), &Names::default());
    let time = Duration::from_millis(500);
    let limited = || context_within(time, EventId::new(), "", 1);

    let alone = inbox.transactional(bill);
    let alone = tokio::time::timeout(time, alone.handle(OrderPlaced { order: 1 }, limited())).await;
    let batched = inbox.batched(batch::bill_all);
    let batched = tokio::time::timeout(time, batched.handle(OrderPlaced { order: 1 }, limited())).await;

    drop(taken);
    for end in [alone, batched] {
        assert!(matches!(end, Ok(Err(HandlerError::Outage(_)))), "{end:?}");
    }
}

#[tokio::test]
async fn what_a_statement_brings_on_itself_is_charged() {
    let world = world().await;
    let handlers = [
        "SET LOCAL statement_timeout = 10; SELECT pg_sleep(10)",
        "SET LOCAL temp_file_limit = 64; SET LOCAL work_mem = 64; SELECT n FROM generate_series(1, 100000) AS n ORDER BY -n",
    ];

    for statement in handlers {
        let handler = inbox(&world).transactional(Ending(statement));
        let end = handler
            .handle(OrderPlaced { order: 1 }, context(EventId::new(), "", 1))
            .await;
        assert!(matches!(end, Err(HandlerError::Retry(_))), "{statement}: {end:?}");
    }
}

#[tokio::test]
async fn a_dropped_handler_leaves_nothing_behind() {
    let world = world().await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(world.database.connect_options())
        .await
        .unwrap();
    let handler = PgInbox::new(pool.clone(), &Names::default()).transactional(
        async |event: OrderPlaced, tx: &mut PgConnection, ctx: Context| {
            bill(event, tx, ctx).await?;
            std::future::pending::<()>().await;
            Ok(())
        },
    );
    let id = EventId::new();

    for wait_ms in [0, 1, 3, 10, 100] {
        let handling = handler.handle(OrderPlaced { order: 1 }, context(id, "", 1));
        assert!(
            tokio::time::timeout(Duration::from_millis(wait_ms), handling)
                .await
                .is_err()
        );
    }

    let fine = PgInbox::new(pool, &Names::default()).transactional(bill);
    fine.handle(OrderPlaced { order: 1 }, context(id, "", 1))
        .await
        .unwrap();
    assert_eq!(number(world.pool(), "SELECT count(*) FROM effects").await, 1);
}

/// Cuts deliveries after each number of polls, and has the application use the only connection of the pool after each.
async fn application_goes_on_after_cuts(world: &World, pool: &PgPool, handler: impl Handler<OrderPlaced>) {
    let before = number(world.pool(), "SELECT count(*) FROM audit").await;
    let mut ended = false;
    for (index, polls) in (1..=20).cycle().take(200).enumerate() {
        let delivery = handler.handle(OrderPlaced { order: 1 }, context(EventId::new(), "", 1));
        ended |= support::cut(polls, delivery).await;

        sqlx::query("INSERT INTO audit DEFAULT VALUES")
            .execute(pool)
            .await
            .unwrap();

        let seen = number(world.pool(), "SELECT count(*) FROM audit").await;
        assert_eq!(seen, before + index as i64 + 1, "cut after {polls} polls");
    }
    assert!(ended, "it was never let end");
}

#[tokio::test]
async fn what_the_application_does_after_a_dropped_delivery_is_committed() {
    let world = world().await;
    world
        .run("CREATE TABLE audit (at timestamptz DEFAULT now())")
        .await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(world.database.connect_options())
        .await
        .unwrap();
    let inbox = PgInbox::new(pool.clone(), &Names::default());

    application_goes_on_after_cuts(&world, &pool, inbox.transactional(bill)).await;
    let nothing = async |_: OrderPlaced, _: Context| Ok::<(), HandlerError>(());
    application_goes_on_after_cuts(&world, &pool, inbox.deduplicated(nothing)).await;
}
