//! A shop as a modular monolith: four modules that know each other only by their events.
//!
//! Run with `cargo run --example shop`, then:
//!
//! ```text
//! curl -s localhost:3000/orders -H 'content-type: application/json' -d '{"customer": "ada", "item": "book", "cents": 1900}'
//! curl -s localhost:3000/orders/1          # placed, then paid, then shipped: ask again
//! curl -s localhost:3000/mails/ada
//! ```
//!
//! Over 100000 cents the bank says no, and the order is cancelled. The mail server refuses every first try.
//!
//! ```text
//!  POST /orders ─▶ orders ── OrderPlaced ──▶ billing ── PaymentTaken ──▶ shipping ── ParcelSent ──▶ orders, mail
//!                              └▶ mail          └────── PaymentDeclined ──▶ orders, mail
//! ```
//!
//! Data outlives the shop in the database that `SHOP_DATABASE_URL` names. With `SHOP_RELAY=off` it takes orders only, and
//! their events wait for one that has a relay. `traces.rs` makes one trace of a request and all that follows from it.
//!
//! Read `orders.rs` first; `billing.rs` is what a module looks like that both listens and publishes. Each writes
//! to its own tables only, and publishes in the transaction that does so. Handlers may see an event twice, and
//! are written for it.

use std::{error::Error, num::NonZeroU32, sync::Arc, time::Duration};

use axum::{Router, http::StatusCode, middleware};
use outbox::{
    Context, HandlerError, Names, PgPublisher, PgSource, Registry, Relay, RelayHandle, RetryPolicy,
    TraceLinks, migrate, stamp, variable,
};
use outbox_dev::TestDatabase;
use sqlx::{PgPool, postgres::PgConnectOptions};
use tokio::net::TcpListener;

mod billing;
mod mail;
mod orders;
mod shipping;
mod traces;

/// What every module works with.
#[derive(Clone)]
struct Shop {
    pool: PgPool,
    publisher: PgPublisher,
}

impl Shop {
    /// As registered for handlers.
    fn of(ctx: &Context) -> Result<&Self, HandlerError> {
        ctx.state()
            .ok_or_else(|| HandlerError::reject("the shop was not registered"))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let traces = traces::start()?;
    // For this run alone, unless it is told of another.
    let (url, _temporary) = match variable::read("SHOP_DATABASE_URL")? {
        Some(url) => (url, None),
        None => {
            let database = TestDatabase::create().await?;
            (database.url().to_owned(), Some(database))
        }
    };
    let options: PgConnectOptions = url.parse()?;
    let pool = PgPool::connect_with(options.clone()).await?;
    let names = Names::default();
    migrate(&mut *pool.acquire().await?, &names).await?;
    for tables in [orders::TABLES, billing::TABLES, shipping::TABLES, mail::TABLES] {
        sqlx::raw_sql(tables).execute(&pool).await?;
    }
    let publisher = PgPublisher::new(&names).stamped(stamp);
    let shop = Shop { pool, publisher };

    // The relay runs in this process. It may run in another: no module would notice.
    let relay = match variable::read("SHOP_RELAY")?.as_deref() {
        Some("off") => None,
        _ => Some(relay(options, shop.clone()).await?),
    };
    let routes = Router::new()
        .merge(orders::routes())
        .merge(mail::routes())
        .with_state(shop)
        .layer(middleware::from_fn(traces::request));
    let port = variable::read("PORT")?.unwrap_or_else(|| "3000".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    println!("the shop is open at http://{}", listener.local_addr()?);
    axum::serve(listener, routes)
        .with_graceful_shutdown(ctrl_c())
        .await?;

    // First no more requests, then no more events: what is under way ends, the rest stays in the outbox.
    let completed = match relay {
        Some(relay) => relay.shutdown().await?.completed,
        None => 0,
    };
    traces.end().await;
    println!("the shop is closed; events completed: {completed}");
    Ok(())
}

async fn relay(options: PgConnectOptions, shop: Shop) -> Result<RelayHandle, Box<dyn Error>> {
    let source = PgSource::builder(options).start().await?;
    let dispatcher = Registry::new().discover().state(shop).build()?;
    let ten = NonZeroU32::new(10).ok_or("not zero")?;
    let retry = RetryPolicy::exponential(ten, Duration::from_millis(500), Duration::from_secs(30));
    let relay = Relay::builder(Arc::new(source), Arc::new(dispatcher))
        .retry(retry)
        .span_links(TraceLinks::default())
        .build()?;
    Ok(relay.spawn())
}

async fn ctrl_c() {
    if let Err(error) = tokio::signal::ctrl_c().await {
        eprintln!("cannot hear Ctrl-C, stopping: {error}");
    }
}

/// What a request gets when the database fails.
fn unavailable(error: impl Error) -> StatusCode {
    eprintln!("request failed: {error}");
    StatusCode::SERVICE_UNAVAILABLE
}
