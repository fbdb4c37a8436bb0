use outbox::{Event, HandlerError, on_event};

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {}

#[on_event(colour = "red")]
async fn h0(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(name = "a", name = "b")]
async fn h1(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(name = "")]
async fn h2(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(name = "!a")]
async fn h3(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(timeout_secs = 0)]
async fn h4(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(timeout_secs = -1)]
async fn h5(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(timeout_secs = "5")]
async fn h6(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(max_attempts = 0)]
async fn h7(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(concurrency = many)]
async fn h8(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event(key = "halt")]
async fn h9(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
