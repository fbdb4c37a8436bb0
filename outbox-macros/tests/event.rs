//! What `#[derive(Event)]` makes of its options.

use std::fmt;

use outbox::Event;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, Event)]
struct Plain {}

#[derive(Serialize, Deserialize, Event)]
#[event(name = "shop.OrderPlaced", aggregate = "order", id = number, key = customer, version = 3)]
struct OrderPlaced {
    number: u64,
    customer: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct OrderNumber(u64);

impl fmt::Display for OrderNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order-{}", self.0)
    }
}

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = 0, key = format!("{}/{}", self.0, self.1))]
struct OrderShipped(OrderNumber, u8);

#[derive(Serialize, Deserialize)]
struct Order {
    number: OrderNumber,
    notes: Vec<Option<String>>,
}

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "order", id = order.number, key = order.notes.first().and_then(Option::as_ref))]
struct OrderNoted {
    order: Order,
}

#[derive(Serialize, Deserialize, Event)]
#[event(aggregate = "payment", id = self.number(), key = "all payments in one line".trim())]
enum PaymentChanged {
    Received { number: u64 },
    Refunded(u64),
}

impl PaymentChanged {
    fn number(&self) -> u64 {
        match self {
            Self::Received { number } | Self::Refunded(number) => *number,
        }
    }
}

#[test]
fn an_event_without_options_is_named_after_its_type() {
    assert_eq!(Plain::EVENT_TYPE, "Plain");
    assert_eq!((Plain::AGGREGATE_TYPE, Plain::SCHEMA_VERSION), (None, 1));
    assert_eq!((Plain {}.aggregate_id(), Plain {}.ordering_key()), (None, None));
}

#[test]
fn options_name_fields() {
    let customer = Some("ada".to_owned());
    let placed = OrderPlaced { number: 7, customer };

    assert_eq!(OrderPlaced::EVENT_TYPE, "shop.OrderPlaced");
    assert_eq!(
        (OrderPlaced::AGGREGATE_TYPE, OrderPlaced::SCHEMA_VERSION),
        (Some("order"), 3)
    );
    assert_eq!(placed.aggregate_id().as_deref(), Some("7"));
    assert_eq!(placed.ordering_key().as_deref(), Some("ada"));
}

#[test]
fn a_field_without_a_value_is_no_key() {
    let placed = OrderPlaced {
        number: 7,
        customer: None,
    };

    assert_eq!(placed.ordering_key(), None);
}

#[test]
fn fields_of_tuple_structs_and_expressions_of_self_work() {
    let shipped = OrderShipped(OrderNumber(7), 2);

    assert_eq!(shipped.aggregate_id().as_deref(), Some("order-7"));
    assert_eq!(shipped.ordering_key().as_deref(), Some("order-7/2"));
}

#[test]
fn a_chain_that_begins_with_a_field_is_taken_from_self() {
    let noted = |notes| OrderNoted {
        order: Order {
            number: OrderNumber(7),
            notes,
        },
    };

    assert_eq!(noted(vec![]).aggregate_id().as_deref(), Some("order-7"));
    assert_eq!(noted(vec![]).ordering_key(), None);
    assert_eq!(
        noted(vec![Some("late".to_owned())]).ordering_key().as_deref(),
        Some("late")
    );
}

#[test]
fn an_enum_is_one_event_type() {
    for payment in [
        PaymentChanged::Received { number: 7 },
        PaymentChanged::Refunded(7),
    ] {
        assert_eq!(payment.aggregate_id().as_deref(), Some("7"));
        assert_eq!(
            payment.ordering_key().as_deref(),
            Some("all payments in one line")
        );
    }
    assert_eq!(PaymentChanged::EVENT_TYPE, "PaymentChanged");
}
