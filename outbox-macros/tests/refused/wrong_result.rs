use outbox::{Event, on_event};

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {}

#[on_event]
async fn charge(_: OrderPlaced) -> Result<(), std::io::Error> {
    Ok(())
}

fn main() {}
