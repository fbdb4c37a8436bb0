// The macros lean on no name of the place where they are used.
#![no_implicit_prelude]
#![allow(dead_code, non_camel_case_types)]

extern crate outbox as renamed;

struct Option;
struct Result;
struct String;
mod core {}
mod std {}

#[derive(::serde::Serialize, ::serde::Deserialize, renamed::Event)]
#[event(aggregate = "order", id = number, key = number, version = 2)]
struct OrderPlaced {
    number: u64,
}

#[renamed::on_event(timeout_secs = 1, max_attempts = 2, concurrency = 3, key = "stop")]
async fn charge(_: OrderPlaced, _: renamed::Context) -> ::core::result::Result<(), renamed::HandlerError> {
    ::core::result::Result::Ok(())
}

fn main() {}
