//! What holds for every event and every record.

use jiff::Timestamp;
use outbox_core::{AggregateId, AggregateType, Envelope, EventId, EventType, OrderingKey, Payload, TenantId};
use outbox_kafka::RecordReader;
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};

use super::{formats, mapping, read, read_back};

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z0-9 _.-]{1,20}",
        "\\PC{1,20}",
        Just("outbox-header-x".to_owned()),
        Just("ce_id".to_owned()),
    ]
}

fn header_name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z-]{1,20}",
        "\\PC{1,10}",
        "(outbox-|outbox-header-|ce_)[a-z]{0,8}",
        Just("content-type".to_owned()),
        Just("outbox-id".to_owned()),
        Just("ce_specversion".to_owned()),
    ]
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let names = (
        text(),
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(text()),
    );
    let json = prop_oneof![
        Just("{}".to_owned()),
        Just("null".to_owned()),
        Just(r#"{"b":1.0,"a":[1e400,18446744073709551616],"a":"\u00e9"}"#.to_owned()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        (100_usize..1000).prop_map(|depth| "[".repeat(depth) + &"]".repeat(depth)),
    ];
    let headers = prop::collection::btree_map(header_name(), any::<String>(), 0..5);
    let instant = (0..4_102_444_800_i64, 0..1_000_000_i32);
    (any::<u128>(), names, json, headers, instant).prop_map(|(id, names, json, headers, (second, micro))| {
        let (event_type, aggregate_type, aggregate_id, ordering_key, tenant_id) = names;
        let mut envelope = Envelope::new(
            EventId::from_uuid(uuid::Uuid::from_u128(id)),
            EventType::new(event_type).unwrap(),
            Payload::from_json(json),
            Timestamp::new(second, micro * 1000).unwrap(),
        );
        envelope.aggregate_type = aggregate_type.map(|text| AggregateType::new(text).unwrap());
        envelope.aggregate_id = aggregate_id.map(|text| AggregateId::new(text).unwrap());
        envelope.ordering_key = ordering_key.map(|text| OrderingKey::new(text).unwrap());
        envelope.tenant_id = tenant_id
            .map(|text| TenantId::new(text).unwrap())
            .unwrap_or_default();
        envelope.headers = headers;
        envelope
    })
}

proptest! {
    #[test]
    fn every_event_comes_back_as_it_was_in_every_format(envelope in envelope()) {
        for format in formats() {
            let record = mapping(format).record(&envelope).unwrap();
            assert_eq!(read_back(&record), Ok(envelope.clone()), "{record:?}");
            let size: usize = record.value.len() + record.headers.iter().map(|(n, v)| n.len() + v.len()).sum::<usize>();
            assert!(record.size() > size);
        }
    }

    #[test]
    fn no_record_makes_the_reader_panic(
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..60)),
        headers in prop::collection::vec((header_name(), prop::option::of(prop::collection::vec(any::<u8>(), 0..40))), 0..10),
    ) {
        let _ = read(RecordReader::new(), value.as_deref(), &headers);
    }
}
