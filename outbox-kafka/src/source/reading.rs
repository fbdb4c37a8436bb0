//! From a record that was polled to what is known of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use outbox_core::{EventId, Undecodable};
use rdkafka::message::{Headers, Message, OwnedMessage};
use uuid::Uuid;

use super::options::SourceOptions;
use super::partition::Facts;
use crate::IncomingRecord;

/// Decodes a record far enough to know how to treat it.
pub(super) fn facts(record: &OwnedMessage, options: &SourceOptions) -> Facts {
    let bytes = bytes_of(record);
    match decode(record, options) {
        Ok(envelope) => Facts {
            id: envelope.id,
            event_type: Some(envelope.event_type),
            key: envelope.ordering_key.map(|key| (envelope.tenant_id, key)),
            bytes,
        },
        Err(undecodable) => Facts {
            id: id_of_header(record).unwrap_or_else(|| id_of_place(record)),
            event_type: undecodable.event_type,
            key: None,
            bytes,
        },
    }
}

/// A header's name and value.
type RawHeader<'a> = (&'a str, Option<&'a [u8]>);

/// The headers of a record; `None` if the name of one is no UTF-8.
pub(super) fn headers_of(record: &OwnedMessage) -> Option<Vec<RawHeader<'_>>> {
    let headers = record.headers().into_iter().flat_map(Headers::iter);
    let read = || headers.map(|header| (header.key, header.value)).collect();
    // The client panics at such a name, and has no other way to read it. Anybody may write one, and it must not end the
    // polling thread, now and again after each restart.
    catch_unwind(AssertUnwindSafe(read)).ok()
}

/// What a record keeps in memory, near enough that a limit in bytes is one of memory.
fn bytes_of(record: &OwnedMessage) -> u64 {
    // What the client keeps for each header besides its name and value: there may be many that are empty.
    const PER_HEADER: usize = 64;
    // What a header that cannot be read is taken for.
    const UNREAD: usize = 1024;
    let field = |field: Option<&[u8]>| field.map_or(0, <[u8]>::len);
    let headers = match headers_of(record) {
        Some(headers) => {
            let sizes = headers
                .iter()
                .map(|(name, value)| PER_HEADER + name.len() + field(*value));
            sizes.sum()
        }
        None => UNREAD * record.headers().map_or(0, Headers::count),
    };
    (field(record.key()) + field(record.payload()) + headers) as u64
}

pub(super) fn decode(
    record: &OwnedMessage,
    options: &SourceOptions,
) -> Result<outbox_core::Envelope, Undecodable> {
    let Some(headers) = headers_of(record) else {
        return Err(Undecodable {
            reason: "the name of a header is no UTF-8".to_owned(),
            event_type: None,
        });
    };
    let incoming =
        IncomingRecord::new(record.payload(), &headers).with_timestamp_ms(record.timestamp().to_millis());
    options.reader.envelope(&incoming)
}

/// The id of a record that cannot be decoded otherwise.
fn id_of_header(record: &OwnedMessage) -> Option<EventId> {
    let headers = headers_of(record)?;
    let (_, id) = headers
        .iter()
        .find(|(name, _)| *name == "outbox-id" || *name == "ce_id")?;
    std::str::from_utf8((*id)?).ok()?.parse().ok()
}

/// An id for a record that tells none: the same for the same place, whoever reads it.
fn id_of_place(record: &OwnedMessage) -> EventId {
    // FNV-1a of 128 bits: it only has to spread.
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let place = record
        .topic()
        .bytes()
        .chain(record.partition().to_be_bytes())
        .chain(record.offset().to_be_bytes());
    let hash = place.fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    EventId::from_uuid(Uuid::from_u128(hash))
}

#[cfg(test)]
mod tests {
    use rdkafka::Timestamp;
    use rdkafka::message::{Header, OwnedHeaders};

    use super::super::shared::Shared;
    use super::*;

    #[test]
    fn a_partition_is_full_by_the_bytes_of_keys_and_headers_too() {
        let header = |name: &str, value: usize| {
            let value = Some(vec![b'v'; value]);
            OwnedHeaders::new().insert(Header {
                key: name,
                value: value.as_ref(),
            })
        };
        let empty = (0..20).fold(OwnedHeaders::new(), |headers, _| {
            headers.insert(Header {
                key: "",
                value: None::<&str>,
            })
        });
        let large = "n".repeat(1000);
        for (key, headers, full) in [
            (10, OwnedHeaders::new(), false),
            (1000, OwnedHeaders::new(), true),
            (10, header("n", 1000), true),
            (10, header(&large, 0), true),
            (10, empty, true),
        ] {
            let shared = Shared::new(SourceOptions::default().with_buffered_bytes_max(1000));
            shared.state().assign(("t".to_owned(), 0));
            let key = Some(vec![b'k'; key]);
            let time = Timestamp::NotAvailable;
            let record = OwnedMessage::new(None, key, "t".to_owned(), time, 0, 0, Some(headers));

            assert_eq!(shared.take(record), full);
        }
    }
}
