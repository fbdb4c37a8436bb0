//! The outbox and Kafka.
//!
//! Without features this crate is the record mapping alone: which topic, key, headers and value an event becomes,
//! and which event a record is. It is plain Rust. The feature `client` adds the dispatcher and the source, and with
//! them librdkafka.

#[cfg(feature = "client")]
mod client_log;
#[cfg(feature = "client")]
mod dispatcher;
mod partitioner;
mod record;
#[cfg(feature = "client")]
mod settings;
#[cfg(feature = "client")]
mod source;

pub use partitioner::partition_of;
pub use record::{
    CloudEvents, Format, IncomingRecord, OutgoingRecord, RecordLimits, RecordMapping, RecordReader,
    TopicName, TopicRule, Unmappable, UnreadableHeaders,
};

#[cfg(feature = "client")]
pub use dispatcher::{DispatcherOptions, KafkaDispatcher, TransactionalDispatcher};
#[cfg(feature = "client")]
pub use settings::KafkaSettings;
#[cfg(feature = "client")]
pub use source::{DeadLetters, KafkaSource, PartitionLag, SourceOptions, SourceTotals};
