//! How much of a record is taken: at least what a publisher accepts.

use outbox_core::{Envelope, HEADER_BYTES_MAX, Headers, NewEvent, OrderingKey, TenantId};
use outbox_kafka::{Format, OutgoingRecord, RecordLimits, RecordReader};

use super::{formats, mapping, order_placed, raw, read, read_back};

/// As many headers as fit in what a publisher accepts: those with the shortest names, and nothing in them.
fn most_headers() -> Headers {
    let printable = || (' '..='~').map(String::from);
    let pairs = printable().flat_map(|first| printable().map(move |second| format!("{first}{second}")));
    let mut room = HEADER_BYTES_MAX;
    let names = printable().chain(pairs).take_while(|name| {
        let fits = name.len() <= room;
        room = room.saturating_sub(name.len());
        fits
    });
    names.map(|name| (name, String::new())).collect()
}

/// An event that has everything an event may have, with these headers.
fn with_headers(headers: Headers) -> Envelope {
    let mut envelope = order_placed();
    envelope.ordering_key = Some(OrderingKey::new("17").unwrap());
    envelope.tenant_id = TenantId::new("shop").unwrap();
    envelope.headers = headers;
    envelope
}

fn is_accepted(headers: &Headers) -> bool {
    let envelope = order_placed();
    let mut event = NewEvent::raw(envelope.event_type, envelope.payload);
    for (name, value) in headers {
        event = event.with_header(name, value);
    }
    event.check(1 << 20).is_ok()
}

#[test]
fn the_most_headers_that_a_publisher_accepts_come_back_in_every_format() {
    let mut headers = most_headers();
    assert!(is_accepted(&headers), "{}", headers.len());
    let envelope = with_headers(headers.clone());

    for format in formats() {
        let record = mapping(format).record(&envelope).unwrap();
        assert_eq!(read_back(&record).as_ref(), Ok(&envelope));
    }
    headers.insert("~~".to_owned(), String::new());
    assert!(!is_accepted(&headers), "one more would have been accepted");
}

#[test]
fn the_longest_headers_that_a_publisher_accepts_come_back_in_every_format() {
    // The longest name is one that travels under another, longer still.
    let name = format!("outbox-{}", "n".repeat(193));
    let value = "v".repeat(HEADER_BYTES_MAX - name.len());
    let longest_value = Headers::from([("n".to_owned(), "v".repeat(HEADER_BYTES_MAX - 1))]);
    for headers in [Headers::from([(name, value)]), longest_value] {
        assert!(is_accepted(&headers));
        let envelope = with_headers(headers);
        for format in formats() {
            let record = mapping(format).record(&envelope).unwrap();
            assert_eq!(read_back(&record).as_ref(), Ok(&envelope));
        }
    }
}

#[test]
fn a_limit_of_headers_counts_those_of_the_event() {
    let headers = |count| (0..count).map(|n| (format!("h{n}"), String::new())).collect();
    let limits = RecordLimits::default().with_headers_max(100);
    let read_within = |record: &OutgoingRecord| {
        read(
            RecordReader::new().with_limits(limits),
            Some(record.value.as_bytes()),
            &raw(record),
        )
    };
    for format in formats() {
        let [met, exceeded] = [100, 101].map(|count| {
            mapping(format.clone())
                .record(&with_headers(headers(count)))
                .unwrap()
        });

        assert_eq!(read_within(&met), Ok(with_headers(headers(100))));
        let refusal = read_within(&exceeded).unwrap_err();
        assert!(refusal.reason.contains("101 headers, at most 100"), "{refusal}");
    }
}

#[test]
fn headers_that_only_look_like_the_mappings_own_are_not_taken_without_end() {
    let record = mapping(Format::Plain).record(&order_placed()).unwrap();
    let limits = RecordLimits::default().with_headers_max(10);
    let mut headers = raw(&record);
    headers.extend((0..50).map(|n| (format!("outbox-{n}"), Some(Vec::new()))));

    let refusal = read(RecordReader::new().with_limits(limits), Some(b"{}"), &headers).unwrap_err();

    assert!(refusal.reason.contains("headers, at most 10"), "{refusal}");
}

#[test]
fn what_exceeds_a_limit_is_refused_and_what_meets_it_is_taken() {
    let plain = mapping(Format::Plain).record(&order_placed()).unwrap();
    let limits = RecordLimits::default()
        .with_headers_max(3)
        .with_header_bytes_max(30, 100)
        .with_value_bytes_max(50);
    let attempt = |value: &str, name: &str, text: &str, copies: usize| {
        let mut headers = raw(&plain);
        headers.extend((0..copies).map(|_| (name.to_owned(), Some(text.as_bytes().to_vec()))));
        read(
            RecordReader::new().with_limits(limits),
            Some(value.as_bytes()),
            &headers,
        )
    };
    let (long_value, long_name, long_text) = ("1".repeat(51), "n".repeat(31), "x".repeat(101));

    assert!(attempt(&long_value[1..], &long_name[1..], &long_text[1..], 2).is_ok());
    for (value, name, text, copies, reason) in [
        (
            long_value.as_str(),
            "n",
            "x",
            1,
            "its value has 51 bytes, at most 50",
        ),
        ("1", long_name.as_str(), "x", 1, "name has 31 bytes, at most 30"),
        (
            "1",
            "n",
            long_text.as_str(),
            1,
            r#""n" has 101 bytes, at most 100"#,
        ),
        ("1", "n", "x", 3, "4 headers, at most 3"),
    ] {
        let refusal = attempt(value, name, text, copies).unwrap_err();
        assert!(refusal.reason.contains(reason), "{refusal}");
    }
}
