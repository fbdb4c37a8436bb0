//! The main job from start to end: events published in transactions, handled, retried, given up, and counted.
//!
//! Run with `cargo run --example quickstart`. It starts the Postgres that it needs and removes it at the end.
//!
//! Ten orders are committed and three rolled back. Of the ten, every third needs a second try, because the mail
//! server is down at the first, and one asks for something that no try will find: it ends as a dead letter. What
//! became of them is then asked of the database; the exit code is 0 only if all of it is right.

use std::{error::Error, num::NonZeroU32, process::ExitCode, sync::Arc, time::Duration};

use outbox::{
    Context, Event, HandlerError, Names, PgPublisher, PgSource, Registry, Relay, RetryPolicy, migrate,
    on_event,
};
use outbox_dev::TestDatabase;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;

/// What happened. Events about one order are handled in the order in which they were published.
#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = order, key = order)]
struct OrderPlaced {
    order: i64,
    item: String,
}

/// Places an order and publishes the event about it, in one transaction: both or neither.
async fn place(order: i64, pool: &PgPool, publisher: &PgPublisher) -> Result<(), Box<dyn Error>> {
    let item = if order == 7 { "unicorn" } else { "book" }.to_owned();
    let mut transaction = pool.begin().await?;
    let insert = sqlx::query("INSERT INTO orders VALUES ($1)").bind(order);
    insert.execute(&mut *transaction).await?;
    let event = OrderPlaced { order, item };
    publisher.publish(&mut transaction, &event).await?;
    if order <= 10 {
        transaction.commit().await?;
    } else {
        transaction.rollback().await?;
    }
    Ok(())
}

// Three modules listen. A handler runs at least once for every committed event; these note what they did.

#[on_event(name = "billing")]
async fn charge(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
    note(event.order, "billing", &ctx).await
}

#[on_event(name = "mail")]
async fn thank(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
    if event.order % 3 == 0 && ctx.attempt() == 1 {
        println!(
            "  order {:2}   mail      will retry: the server is down",
            event.order
        );
        return Err(HandlerError::retry("the mail server is down"));
    }
    note(event.order, "mail", &ctx).await
}

#[on_event(name = "warehouse")]
async fn pick(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
    if event.item == "unicorn" {
        println!("  order {:2}   warehouse gives up: no unicorns", event.order);
        return Err(HandlerError::reject("there are no unicorns"));
    }
    note(event.order, "warehouse", &ctx).await
}

async fn note(order: i64, handler: &str, ctx: &Context) -> Result<(), HandlerError> {
    let pool = ctx.state::<PgPool>().ok_or("no pool")?;
    let insert = sqlx::query("INSERT INTO handled VALUES ($1, $2) ON CONFLICT DO NOTHING");
    insert.bind(order).bind(handler).execute(pool).await?;
    println!("  order {order:2}   {handler:9} handled at try {}", ctx.attempt());
    Ok(())
}

const TABLES: &str = "
    CREATE TABLE orders (id bigint PRIMARY KEY);
    CREATE TABLE handled (order_id bigint, handler text, PRIMARY KEY (order_id, handler))";

const PENDING: &str = "SELECT count(*) FROM outbox.outbox WHERE status = 'pending'";

/// What is counted, how many there should be, and how many there are.
const COUNTS: &str = "VALUES
    ('orders committed',        10, (SELECT count(*) FROM orders)),
    ('events stored',           10, (SELECT count(*) FROM outbox.outbox)),
    ('completed',                9, (SELECT count(*) FROM outbox.outbox WHERE status = 'completed')),
    ('completed after a retry',  3, (SELECT count(*) FROM outbox.outbox WHERE status = 'completed' AND retry_count > 0)),
    ('dead letters',             1, (SELECT count(*) FROM outbox.outbox WHERE status = 'failed')),
    ('handled by billing',      10, (SELECT count(*) FROM handled WHERE handler = 'billing')),
    ('handled by mail',         10, (SELECT count(*) FROM handled WHERE handler = 'mail')),
    ('handled by warehouse',     9, (SELECT count(*) FROM handled WHERE handler = 'warehouse')),
    ('handled, yet rolled back', 0, (SELECT count(*) FROM handled WHERE order_id NOT IN (SELECT id FROM orders)))";

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let database = TestDatabase::create().await?;
    let pool = database.pool().clone();
    let names = Names::default();
    migrate(&mut *pool.acquire().await?, &names).await?;
    sqlx::raw_sql(TABLES).execute(&pool).await?;

    let source = PgSource::builder(database.connect_options()).start().await?;
    let handlers = Registry::new().discover().state(pool.clone()).build()?;
    let tries = NonZeroU32::new(5).ok_or("not zero")?;
    let retry = RetryPolicy::exponential(tries, Duration::from_millis(200), Duration::from_secs(1));
    let relay = Relay::builder(Arc::new(source), Arc::new(handlers)).retry(retry);
    let relay = relay.build()?.spawn();

    println!("10 orders are committed, 3 rolled back:");
    let publisher = PgPublisher::new(&names);
    for order in 1..=13 {
        place(order, &pool, &publisher).await?;
    }
    let settled = async {
        while sqlx::query_scalar::<_, i64>(PENDING).fetch_one(&pool).await? > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, sqlx::Error>(())
    };
    tokio::time::timeout(Duration::from_secs(60), settled).await??;
    relay.shutdown().await?;

    println!("what the database says:");
    let mut all_right = true;
    let counts: Vec<(String, i32, i64)> = sqlx::query_as(COUNTS).fetch_all(&pool).await?;
    for (what, expected, found) in counts {
        let right = found == i64::from(expected);
        all_right &= right;
        println!(
            "  {what:24} {found:3}   {}",
            if right { "right" } else { "WRONG" }
        );
    }
    Ok(if all_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
