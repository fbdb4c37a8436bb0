use outbox::Event;

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct Changed<T> {
    value: T,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct Misplaced {
    #[event(id)]
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(aggregate = "payment", id = number)]
enum Payment {
    Received { number: u64 },
    Refunded { number: u64 },
}

fn main() {}
