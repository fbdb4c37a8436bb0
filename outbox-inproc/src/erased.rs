//! Handlers of different event types behind one type, and the decoding of their events.

use std::any::type_name;
use std::marker::PhantomData;
use std::pin::Pin;

use outbox_core::{BoxError, Context, Event, Handler, HandlerError, State};

/// The future of a handler's try.
pub(crate) type HandlerFuture<'a> = Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;

/// A handler that decodes its own event.
pub(crate) trait ErasedHandler: Send + Sync {
    /// Decodes the event and begins to handle it. An error is the text of what the payload lacks.
    fn start(&self, ctx: Context) -> Result<HandlerFuture<'_>, String>;

    /// Whether the state has what the handler needs.
    fn check(&self, state: &State) -> Result<(), BoxError>;
}

/// A handler with the event type that it takes.
pub(crate) struct Typed<E, H> {
    handler: H,
    event: PhantomData<fn(E)>,
}

impl<E: Event, H: Handler<E>> Typed<E, H> {
    pub(crate) fn boxed(handler: H) -> Box<dyn ErasedHandler> {
        Box::new(Self {
            handler,
            event: PhantomData,
        })
    }
}

impl<E: Event, H: Handler<E>> ErasedHandler for Typed<E, H> {
    fn start(&self, ctx: Context) -> Result<HandlerFuture<'_>, String> {
        let event: E = ctx
            .envelope()
            .payload
            .decode()
            .map_err(|error| undecodable(type_name::<E>(), &error))?;
        Ok(Box::pin(self.handler.handle(event, ctx)))
    }

    fn check(&self, state: &State) -> Result<(), BoxError> {
        self.handler.check(state)
    }
}

/// Says where the payload does not fit, and which form was expected, without a word of the payload.
fn undecodable(rust_type: &str, error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    match expectation(&error.to_string()) {
        Some(expected) => {
            format!("payload is no `{rust_type}`: {expected} at line {line} column {column}")
        }
        None => format!("payload is no `{rust_type}`: unreadable at line {line} column {column}"),
    }
}

/// The part of a message of serde's that comes from the Rust type. What it found instead comes from the payload.
fn expectation(message: &str) -> Option<String> {
    const QUOTING: [&str; 5] = [
        "invalid type: ",
        "invalid value: ",
        "invalid length ",
        "unknown variant `",
        "unknown field `",
    ];
    let message = message.rsplit_once(" at line ").map_or(message, |(text, _)| text);
    if message.starts_with("missing field `") {
        return Some(message.to_owned());
    }
    // Where nothing is expected, an `expected` can only stem from the payload.
    if message.ends_with("there are no fields") || message.ends_with("there are no variants") {
        return None;
    }
    QUOTING.iter().find(|start| message.starts_with(**start))?;
    let (_, expected) = message.rsplit_once(", expected ")?;
    Some(format!("expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only decoded")]
    struct Order {
        order: u64,
        state: State,
    }

    #[derive(Debug, serde::Deserialize)]
    enum State {
        Placed,
        Shipped,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    fn complaint<T: serde::de::DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        undecodable("Order", &serde_json::from_str::<T>(json).unwrap_err())
    }

    #[test]
    fn a_complaint_says_what_was_expected_and_where() {
        let cases = [
            (
                "{}",
                "payload is no `Order`: missing field `order` at line 1 column 2",
            ),
            (
                r#"{"order": "secret"}"#,
                "payload is no `Order`: expected u64 at line 1 column 18",
            ),
            (
                r#"{"order": 1, "state": "secret"}"#,
                "payload is no `Order`: expected `Placed` or `Shipped` at line 1 column 30",
            ),
            (
                r#"{"secret": 1}"#,
                "payload is no `Order`: expected `order` or `state` at line 1 column 9",
            ),
            ("{secret", "payload is no `Order`: unreadable at line 1 column 2"),
        ];

        for (json, expected) in cases {
            assert_eq!(complaint::<Order>(json), expected);
        }
    }

    #[test]
    fn a_complaint_never_quotes_the_payload() {
        let hostile = [
            r#"{"order": "a, expected secret"}"#,
            r#"{"order": "x at line secret"}"#,
            r#"{"order": 1, "state": "a`, expected secret"}"#,
            r#"{"a, expected secret": 1}"#,
            r#"["secret"]"#,
        ];

        for json in hostile {
            assert!(!complaint::<Order>(json).contains("secret"), "{json}");
            assert!(!complaint::<Nothing>(json).contains("secret"), "{json}");
        }
    }
}
