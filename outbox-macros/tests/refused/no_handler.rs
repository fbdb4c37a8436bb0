use outbox::{Context, Event, Registry};

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {}

struct Billing;

async fn forgot_the_result(_: OrderPlaced, _: Context) {}

fn main() {
    let _ = Registry::new().on::<OrderPlaced>("billing", Billing);
    let _ = Registry::new().on::<OrderPlaced>("mail", forgot_the_result);
}
