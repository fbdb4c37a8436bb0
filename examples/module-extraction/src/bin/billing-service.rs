//! After: billing as a service of its own, with a database of its own. Events come from Kafka, to the same handlers.
//!
//! Run with `DATABASE_URL=… OUTBOX_KAFKA_BOOTSTRAP=… cargo run -p module-extraction --bin billing-service`.

use std::sync::Arc;

use module_extraction::{billing, process};
use outbox::kafka::{DeadLetters, KafkaSettings, KafkaSource, SourceOptions, TopicName};
use outbox::{Names, PgInbox, Registry, Relay, RelaySettings};

#[tokio::main]
async fn main() -> Result<(), process::Failed> {
    let pool = process::database(&[billing::TABLES]).await?;

    let inbox = PgInbox::new(pool.clone(), &Names::default());
    let dispatcher = billing::register(Registry::new(), &inbox).build()?;

    let kafka = KafkaSettings::new(process::setting("OUTBOX_KAFKA_BOOTSTRAP")?)
        // Static membership would do as well: a service that was killed is missed after this long.
        .with("session.timeout.ms", "6000");
    let topics = [TopicName::new("shop.order")?];
    let dead_letters = DeadLetters::Topic(TopicName::new("shop.billing.dead")?);
    let source = Arc::new(KafkaSource::new(
        &kafka,
        ("billing", &topics),
        dead_letters,
        SourceOptions::default(),
    )?);
    let relay = Relay::builder(source.clone(), Arc::new(dispatcher))
        .settings(RelaySettings::from_env()?)
        .build()?;
    let report = relay.run_until(process::asked_to_end()).await?;
    source.close().await;
    println!("{} events completed", report.completed);
    Ok(())
}
