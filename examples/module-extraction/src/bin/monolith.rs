//! Before: both modules in one process. Events go from Postgres straight to the handlers.
//!
//! Run with `DATABASE_URL=… cargo run -p module-extraction --bin monolith`.

use std::sync::Arc;

use module_extraction::{billing, orders, process};
use outbox::{Names, PgInbox, PgSource, Registry, Relay, RelaySettings};

#[tokio::main]
async fn main() -> Result<(), process::Failed> {
    let pool = process::database(&[orders::TABLES, billing::TABLES]).await?;

    let inbox = PgInbox::new(pool.clone(), &Names::default());
    let dispatcher = billing::register(Registry::new(), &inbox).build()?;

    let source = PgSource::builder((*pool.connect_options()).clone())
        .start()
        .await?;
    let relay = Relay::builder(Arc::new(source), Arc::new(dispatcher))
        .settings(RelaySettings::from_env()?)
        .build()?;
    let report = relay.run_until(process::asked_to_end()).await?;
    println!("{} events completed", report.completed);
    Ok(())
}
