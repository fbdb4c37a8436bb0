//! After: billing has moved out. Its events go from Postgres to Kafka; nothing else in the monolith has changed.
//!
//! Run with `DATABASE_URL=… OUTBOX_KAFKA_BOOTSTRAP=… cargo run -p module-extraction --bin monolith-without-billing`.

use std::sync::Arc;

use module_extraction::{orders, process};
use outbox::kafka::{DispatcherOptions, KafkaDispatcher, KafkaSettings, RecordMapping, TopicRule};
use outbox::{PgSource, Relay, RelaySettings};

#[tokio::main]
async fn main() -> Result<(), process::Failed> {
    let pool = process::database(&[orders::TABLES]).await?;

    let kafka = KafkaSettings::new(process::setting("OUTBOX_KAFKA_BOOTSTRAP")?);
    let mapping = RecordMapping::new(TopicRule::by_aggregate_type("shop.", None));
    let dispatcher = KafkaDispatcher::new(&kafka, mapping, DispatcherOptions::default())?;

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
