//! The record mapping, there and back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has to panic")]

mod limits;
mod properties;

use jiff::Timestamp;
use outbox_core::{
    AggregateId, AggregateType, Envelope, EventId, EventType, OrderingKey, Payload, Undecodable,
};
use outbox_kafka::{
    CloudEvents, Format, IncomingRecord, OutgoingRecord, RecordMapping, RecordReader, TopicName, TopicRule,
    UnreadableHeaders,
};

fn formats() -> [Format; 3] {
    let settings = CloudEvents::new("/shop").unwrap();
    [
        Format::Plain,
        Format::CloudEventsBinary(settings.clone()),
        Format::CloudEventsStructured(settings),
    ]
}

fn mapping(format: Format) -> RecordMapping {
    RecordMapping::new(TopicRule::fixed(TopicName::new("events").unwrap())).with_format(format)
}

fn order_placed() -> Envelope {
    let mut envelope = Envelope::new(
        "0198c0de-0000-7000-8000-000000000001".parse::<EventId>().unwrap(),
        EventType::new("OrderPlaced").unwrap(),
        Payload::from_json(r#"{"total": 12.50, "b":1,"a":2}"#),
        "2026-05-01T12:00:00.123456Z".parse().unwrap(),
    );
    envelope.aggregate_type = Some(AggregateType::new("order").unwrap());
    envelope.aggregate_id = Some(AggregateId::new("17").unwrap());
    envelope
        .headers
        .insert("traceparent".into(), "00-aa-bb-01".into());
    envelope
}

type RawHeaders = Vec<(String, Option<Vec<u8>>)>;

fn raw(record: &OutgoingRecord) -> RawHeaders {
    let headers = record.headers.iter();
    headers
        .map(|(name, value)| (name.clone(), Some(value.clone().into_bytes())))
        .collect()
}

fn read(reader: RecordReader, value: Option<&[u8]>, headers: &RawHeaders) -> Result<Envelope, Undecodable> {
    let headers: Vec<_> = headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_deref()))
        .collect();
    reader.envelope(&IncomingRecord::new(value, &headers))
}

fn read_back(record: &OutgoingRecord) -> Result<Envelope, Undecodable> {
    read(RecordReader::new(), Some(record.value.as_bytes()), &raw(record))
}

#[test]
fn a_plain_record_is_the_payload_with_the_rest_in_headers() {
    let record = mapping(Format::Plain).record(&order_placed()).unwrap();

    assert_eq!(record.topic.as_str(), "events");
    assert_eq!(record.key.as_deref(), Some("17"));
    assert_eq!(record.value, r#"{"total": 12.50, "b":1,"a":2}"#);
    assert_eq!(record.timestamp_ms, 1_777_636_800_123);
    let expected = [
        ("outbox-id", "0198c0de-0000-7000-8000-000000000001"),
        ("outbox-event-type", "OrderPlaced"),
        ("outbox-created-at", "2026-05-01T12:00:00.123456Z"),
        ("outbox-aggregate-type", "order"),
        ("outbox-aggregate-id", "17"),
        ("traceparent", "00-aa-bb-01"),
    ];
    assert_eq!(
        record.headers,
        expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
    );
}

#[test]
fn a_structured_record_is_one_json_object_with_the_payload_unchanged() {
    let [_, _, structured] = formats();
    let record = mapping(structured).record(&order_placed()).unwrap();

    let object: serde_json::Value = serde_json::from_str(&record.value).unwrap();
    assert_eq!(object["specversion"], "1.0");
    assert_eq!(object["source"], "/shop");
    assert_eq!(object["type"], "OrderPlaced");
    assert_eq!(object["subject"], "17");
    assert_eq!(object["partitionkey"], "17");
    assert!(
        record
            .value
            .ends_with(r#","data":{"total": 12.50, "b":1,"a":2}}"#)
    );
    assert_eq!(record.headers[0].1, "application/cloudevents+json; charset=UTF-8");
}

#[test]
fn the_key_is_the_ordering_key_else_the_aggregate_id_else_there_is_none() {
    let mut envelope = order_placed();
    let key = |envelope: &Envelope| mapping(Format::Plain).record(envelope).unwrap().key;

    assert_eq!(key(&envelope).as_deref(), Some("17"));
    envelope.ordering_key = Some(OrderingKey::new("customer-3").unwrap());
    assert_eq!(key(&envelope).as_deref(), Some("customer-3"));
    envelope.ordering_key = None;
    envelope.aggregate_id = None;
    assert_eq!(key(&envelope), None);
}

#[test]
fn what_a_foreign_record_lacks_is_named() {
    let plain = mapping(Format::Plain).record(&order_placed()).unwrap();
    let [_, binary, structured] = formats().map(|format| mapping(format).record(&order_placed()).unwrap());
    let without = |record: &OutgoingRecord, name: &str| {
        let mut headers = raw(record);
        headers.retain(|(header, _)| header != name);
        headers
    };
    let with = |record: &OutgoingRecord, name: &str, value: Option<&[u8]>| {
        let mut headers = raw(record);
        headers.push((name.to_owned(), value.map(<[u8]>::to_vec)));
        headers
    };
    let json: Option<&[u8]> = Some(b"{}");
    let long = [b'x'; 300];
    let cases: Vec<(Option<&[u8]>, RawHeaders, &str)> = vec![
        (None, raw(&plain), "its value is null"),
        (Some(b"{"), raw(&plain), "its value is no JSON (line 1, column 1)"),
        (Some(b"\xff{}"), raw(&plain), "its value is no UTF-8 from byte 0"),
        (Some(b""), raw(&plain), "its value is no JSON"),
        (
            json,
            vec![],
            "it has neither the header outbox-id nor ce_specversion",
        ),
        (
            json,
            without(&plain, "outbox-event-type"),
            "outbox-event-type is missing",
        ),
        (
            json,
            without(&plain, "outbox-created-at"),
            "outbox-created-at is missing",
        ),
        (
            json,
            with(&plain, "outbox-id", Some(b"17")),
            "outbox-id is no UUID",
        ),
        (
            json,
            with(&plain, "outbox-id", None),
            r#"the header "outbox-id" is null"#,
        ),
        (json, with(&plain, "x", None), r#"the header "x" is null"#),
        (
            json,
            with(&plain, "x", Some(b"\xff")),
            r#"the header "x" is no text"#,
        ),
        (
            json,
            with(&plain, "outbox-event-type", Some(&long)),
            "event type has 300 bytes",
        ),
        (
            json,
            with(&plain, "outbox-tenant-id", Some(b"\x07")),
            "control character",
        ),
        (
            json,
            with(&binary, "ce_specversion", Some(b"0.3")),
            "version of CloudEvents",
        ),
        (json, without(&binary, "ce_type"), "ce_type is missing"),
        (
            json,
            with(&binary, "ce_time", Some(b"noon")),
            "ce_time is no instant",
        ),
        (json, raw(&structured), "it has no data"),
        (Some(b"[]"), raw(&structured), "its value is no JSON object"),
        (
            Some(br#"{"specversion":{}}"#),
            raw(&structured),
            r#"its attribute "specversion" is no text"#,
        ),
        (
            Some(br#"{"data_base64":""}"#),
            raw(&structured),
            "not JSON but base64",
        ),
        (
            json,
            with(
                &structured,
                "content-type",
                Some(b"application/cloudevents-batch+json"),
            ),
            "only single JSON objects",
        ),
    ];

    for (value, headers, reason) in cases {
        let refusal = read(RecordReader::new(), value, &headers).unwrap_err();
        assert!(refusal.reason.contains(reason), "{reason}: {refusal}");
    }
}

#[test]
fn the_event_type_of_an_undecodable_record_is_kept_where_it_could_be_read() {
    let mut record = mapping(Format::Plain).record(&order_placed()).unwrap();
    record.headers.retain(|(name, _)| name != "outbox-created-at");

    let refusal = read_back(&record).unwrap_err();

    assert_eq!(refusal.event_type, Some(EventType::new("OrderPlaced").unwrap()));
}

#[test]
fn a_record_without_an_instant_takes_its_own_time() {
    let [_, binary, _] = formats();
    let mut record = mapping(binary).record(&order_placed()).unwrap();
    record.headers.retain(|(name, _)| name != "ce_time");
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|(n, v)| (n.as_str(), Some(v.as_bytes())))
        .collect();
    let incoming = IncomingRecord::new(Some(b"{}"), &headers).with_timestamp_ms(Some(5));

    let envelope = RecordReader::new().envelope(&incoming).unwrap();

    assert_eq!(envelope.created_at, Timestamp::from_millisecond(5).unwrap());
}

#[test]
fn headers_that_are_no_text_can_be_left_out_but_never_attributes() {
    let plain = mapping(Format::Plain).record(&order_placed()).unwrap();
    let reader = RecordReader::new().with_unreadable_headers(UnreadableHeaders::LeaveOut);
    let mut headers = raw(&plain);
    headers.push(("agent".into(), Some(vec![0xff])));
    headers.push(("nothing".into(), None));

    let envelope = read(reader, Some(b"{}"), &headers).unwrap();
    assert_eq!(envelope.headers, order_placed().headers);

    headers.push(("outbox-tenant-id".into(), None));
    assert!(read(reader, Some(b"{}"), &headers).is_err());
}

#[test]
fn attributes_of_other_producers_become_headers_and_their_trace_is_ours() {
    let value = br#"{"specversion":"1.0","id":"0198c0de-0000-7000-8000-000000000001","source":"/x","type":"T",
        "time":"2026-05-01T12:00:00+02:00","traceparent":"00-cc-dd-01","sampledrate":3,"nothing":null,"data":[1]}"#;
    let headers = vec![(
        "content-type".to_owned(),
        Some(b"application/cloudevents+json".to_vec()),
    )];

    let envelope = read(RecordReader::new(), Some(value), &headers).unwrap();

    assert_eq!(envelope.payload.as_str(), "[1]");
    assert_eq!(envelope.created_at, "2026-05-01T10:00:00Z".parse().unwrap());
    let headers: Vec<_> = envelope
        .headers
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()))
        .collect();
    assert_eq!(headers, [("ce_sampledrate", "3"), ("traceparent", "00-cc-dd-01")]);
}

#[test]
fn a_refusal_never_shows_a_value() {
    let plain = mapping(Format::Plain).record(&order_placed()).unwrap();
    let mut headers = raw(&plain);
    headers.push(("outbox-created-at".into(), Some(b"s3cret".to_vec())));

    let refusal = read(RecordReader::new(), Some(b"{}"), &headers).unwrap_err();
    let unread = read(RecordReader::new(), Some(br#"{"s3cret""#), &raw(&plain)).unwrap_err();

    assert!(!format!("{refusal:?} {refusal} {unread:?} {plain:?}").contains("s3cret"));
    assert!(!format!("{plain:?}").contains("12.50"));
}
