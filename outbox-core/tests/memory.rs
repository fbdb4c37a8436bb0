//! Publishing to the source in memory: it takes and refuses what every publisher does.
#![expect(clippy::unwrap_used, reason = "a failed expectation is a panic")]

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::memory::{MemorySource, Status};
use outbox_core::{
    ClaimRequest, Envelope, EventId, EventType, InvalidEvent, NewEvent, PAYLOAD_BYTES_MAX, Payload, Source,
};

fn request() -> ClaimRequest {
    ClaimRequest::new(NonZeroU32::new(9).unwrap(), Duration::from_secs(30))
}

fn event(payload: &str) -> NewEvent {
    NewEvent::raw(
        EventType::new("OrderPlaced").unwrap(),
        Payload::from_json(payload),
    )
}

#[tokio::test]
async fn everything_that_travels_with_an_event_is_claimed_with_it() {
    let source = MemorySource::new();
    let sent = event("7")
        .with_header("tone", "warm")
        .with_tenant("acme".parse().unwrap())
        .with_ordering_key("order-7".parse().unwrap());

    let id = source.publish(sent.clone()).unwrap();

    let claimed = source.claim(request()).await.unwrap();
    let got = claimed[0].envelope.as_ref().unwrap();
    assert_eq!(got.id, id);
    assert_eq!(got.payload, sent.payload);
    assert_eq!(got.headers, sent.headers);
    assert_eq!(Some(&got.tenant_id), sent.tenant_id.as_ref());
    assert_eq!(got.ordering_key, sent.ordering_key);
}

#[tokio::test]
async fn the_same_id_twice_is_one_event() {
    let source = MemorySource::new();
    let id = EventId::new();

    source.publish(event("1").with_id(id)).unwrap();
    source.publish(event("2").with_id(id)).unwrap();

    assert_eq!(source.counts().pending, 1);
}

#[tokio::test]
async fn what_follows_from_an_event_is_of_its_tenant_if_that_has_one() {
    let cause = |tenant: &str| {
        let mut cause = Envelope::new(
            EventId::new(),
            EventType::new("OrderPlaced").unwrap(),
            Payload::from_json("7"),
            jiff::Timestamp::now(),
        );
        cause.tenant_id = tenant.parse().unwrap();
        event("8").caused_by(&cause).tenant_id
    };

    assert_eq!(cause("acme"), Some("acme".parse().unwrap()));
    assert_eq!(cause(""), None, "its transaction may have one");
}

#[tokio::test]
async fn a_refused_event_is_not_there() {
    let source = MemorySource::new();
    let large = format!("{:?}", "x".repeat(PAYLOAD_BYTES_MAX));

    let refused = [
        source.publish(event(&large)),
        source.publish(event("{")),
        source.publish(event("1").with_header("", "nameless")),
    ];

    assert!(matches!(refused[0], Err(InvalidEvent::TooLarge { .. })));
    assert!(matches!(refused[1], Err(InvalidEvent::NotJson { .. })));
    assert!(matches!(refused[2], Err(InvalidEvent::Header { .. })));
    assert_eq!(source.counts().pending, 0);
}

#[tokio::test(start_paused = true)]
async fn a_delay_without_end_is_a_wait_and_no_panic() {
    let source = MemorySource::new();
    let never = source.publish(event("1").with_delay(Duration::MAX)).unwrap();
    let soon = source
        .publish(event("2").with_delay(Duration::from_secs(1)))
        .unwrap();

    tokio::time::advance(Duration::from_secs(1)).await;

    let claimed = source.claim(request()).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, soon);
    assert_eq!(source.status(never), Some(Status::Pending));
}
