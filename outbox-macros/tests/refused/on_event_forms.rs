use outbox::{Event, Context, HandlerError, on_event};

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {}

#[on_event]
fn not_async(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn no_event() -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn too_much(_: OrderPlaced, _: Context, _: u8) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn no_result(_: OrderPlaced) {}

#[on_event]
async fn borrows(_: &OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn generic<E: Event>(_: E) -> Result<(), HandlerError> {
    Ok(())
}

struct Billing;

impl Billing {
    #[on_event]
    async fn method(&self, _: OrderPlaced) -> Result<(), HandlerError> {
        Ok(())
    }
}

fn main() {}
