use outbox::Event;

#[derive(serde::Serialize, serde::Deserialize)]
struct Number(u64);

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(aggregate = "order", id = number)]
struct OrderPlaced {
    number: Number,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(key = number)]
struct OrderShipped {
    number: Option<Number>,
}

fn main() {}
