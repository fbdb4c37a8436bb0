#![forbid(unsafe_code)]
#![deny(warnings)]

use outbox::{Event, HandlerError, Registry, on_event};

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(aggregate = "order", id = number, key = customer)]
struct OrderPlaced {
    number: u64,
    customer: Option<String>,
}

#[on_event]
async fn charge(_event: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let dispatcher = Registry::new().discover().build().unwrap();
    assert_eq!(dispatcher.handler_counts()["OrderPlaced"], 1);
}
