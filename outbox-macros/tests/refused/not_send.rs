use outbox::{Event, HandlerError, on_event};

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {}

async fn pause() {}

#[on_event]
async fn charge(_: OrderPlaced) -> Result<(), HandlerError> {
    let shared = std::rc::Rc::new(1);
    pause().await;
    drop(shared);
    Ok(())
}

fn main() {}
