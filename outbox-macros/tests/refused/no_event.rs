use outbox::{HandlerError, on_event};

struct OrderPlaced {}

#[on_event]
async fn charge(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
