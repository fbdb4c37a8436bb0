mod shop {
    pub use outbox as events;
}

#[derive(serde::Serialize, serde::Deserialize, shop::events::Event)]
#[event(crate = "crate::shop::events", aggregate = "order", id = number)]
struct OrderPlaced {
    number: u64,
}

#[shop::events::on_event(crate = "crate::shop::events")]
async fn charge(_: OrderPlaced) -> Result<(), shop::events::HandlerError> {
    Ok(())
}

fn main() {}
