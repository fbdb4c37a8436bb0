// A handler may be called what the macro's own code is called.
#![deny(warnings)]
#![allow(dead_code)]

use outbox::{Context, Event, HandlerError, on_event};

#[derive(serde::Serialize, serde::Deserialize, Event)]
struct OrderPlaced {
    number: u64,
}

#[on_event]
async fn handle(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn event(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn ctx(_: OrderPlaced, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn registry(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

#[on_event]
async fn submit(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {}
