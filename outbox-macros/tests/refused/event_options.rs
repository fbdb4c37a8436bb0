use outbox::Event;

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(colour = "red")]
struct E0 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(name = "")]
struct E1 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(name = "a\nb")]
struct E2 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(name = "a", name = "b")]
struct E3 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(aggregate = "order", id = numbr)]
struct E4 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(aggregate = "order", id = "number")]
struct E5 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(id = number)]
struct E6 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(version = 0)]
struct E7 {
    number: u64,
}

#[derive(serde::Serialize, serde::Deserialize, Event)]
#[event(key = number, key = number)]
struct E8 {
    number: u64,
}

fn main() {}
