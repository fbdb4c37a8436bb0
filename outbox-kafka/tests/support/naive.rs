//! The obvious dispatcher, kept as the broken twin: an idempotent producer, everything sent at once.

use async_trait::async_trait;
use outbox_core::{Delivered, Delivery, Dispatcher, Failure, FailureKind, RunResult};
use outbox_kafka::{OutgoingRecord, RecordMapping};
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

pub(crate) struct NaiveDispatcher {
    mapping: RecordMapping,
    producer: FutureProducer,
}

impl NaiveDispatcher {
    pub(crate) fn new(bootstrap: &str, mapping: RecordMapping, extra: &[(&str, &str)]) -> Self {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap)
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "1500")
            .set("partitioner", "murmur2_random")
            .set("reconnect.backoff.max.ms", "500");
        extra.iter().for_each(|(name, value)| {
            config.set(*name, *value);
        });
        Self {
            mapping,
            producer: config.create().unwrap(),
        }
    }
}

fn headers(record: &OutgoingRecord) -> OwnedHeaders {
    let insert = |headers: OwnedHeaders, (key, value): &(String, String)| {
        headers.insert(Header {
            key,
            value: Some(value),
        })
    };
    record.headers.iter().fold(OwnedHeaders::new(), insert)
}

#[async_trait]
impl Dispatcher for NaiveDispatcher {
    async fn dispatch(&self, delivery: &Delivery) -> Result<Delivered, Failure> {
        self.dispatch_run(std::slice::from_ref(delivery)).await.remove(0)
    }

    async fn dispatch_run(&self, run: &[Delivery]) -> RunResult {
        let records: Vec<_> = run
            .iter()
            .map(|delivery| self.mapping.record(&delivery.envelope).unwrap())
            .collect();
        let mut sends = Vec::new();
        for record in &records {
            let sent = FutureRecord::to(record.topic.as_str())
                .key(record.key.as_deref().unwrap_or_default())
                .payload(&record.value)
                .timestamp(record.timestamp_ms)
                .headers(headers(record));
            sends.push(self.producer.send_result(sent).map_err(|(error, _)| error));
        }
        let mut results = RunResult::new();
        for send in sends {
            let sent = match send {
                Ok(report) => report.await.unwrap().map_err(|(error, _)| error),
                Err(error) => Err(error),
            };
            match sent {
                Ok(_) => results.push(Ok(Delivered::Handled)),
                Err(error) => {
                    results.push(Err(Failure::new(FailureKind::Outage, error)));
                    break;
                }
            }
        }
        results
    }

    fn pipelines(&self) -> bool {
        true
    }
}
