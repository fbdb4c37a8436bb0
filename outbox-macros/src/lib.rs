//! The macros `#[derive(Event)]` and `#[on_event]`. Use them through the facade `outbox`.

mod event;
mod event_options;
mod names;
mod on_event;
mod on_event_options;
mod root;

use proc_macro::TokenStream;
use syn::{DeriveInput, ItemFn, parse_macro_input};

/// Makes a struct or an enum an event.
///
/// The type also needs `serde::Serialize` and `serde::Deserialize`: the payload is its JSON.
///
/// ```
/// use outbox::Event;
///
/// #[derive(serde::Serialize, serde::Deserialize, Event)]
/// #[event(name = "shop.OrderPlaced", aggregate = "order", id = order_id, key = customer)]
/// struct OrderPlaced {
///     order_id: u64,
///     customer: Option<String>,
/// }
///
/// let placed = OrderPlaced { order_id: 7, customer: None };
/// assert_eq!(OrderPlaced::EVENT_TYPE, "shop.OrderPlaced");
/// assert_eq!(placed.aggregate_id().as_deref(), Some("7"));
/// assert_eq!(placed.ordering_key(), None);
/// ```
///
/// # Options
/// All are optional, in `#[event(…)]` on the type.
///
/// | Option | Means | Default |
/// | --- | --- | --- |
/// | `name = "…"` | the event type. It is stored: give it by hand before you rename the Rust type | the type's name |
/// | `aggregate = "…"` | what kind of thing the event is about | none |
/// | `id = …` | which thing it is about: a field, or an expression of `self` | none |
/// | `key = …` | the ordering key: a field, or an expression of `self` | none, no order is kept |
/// | `version = N` | the version of the payload's form, from 1 | 1 |
/// | `crate = "…"` | the path of the crate `outbox` | found in `Cargo.toml` |
///
/// An `id` or `key` may have any type with a `Display`, or an `Option` of one, where `None` means no id or no key. What
/// begins with the name of a field is taken from `self`: `id = order.number` means `self.order.number`, `id = 0` the first
/// field of a tuple struct. An enum has no fields of its own: give it `id = self.order_id()`.
///
/// A generic type cannot be an event: all its forms would share one event type.
#[proc_macro_derive(Event, attributes(event))]
pub fn derive_event(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    event::expand(&input)
        .unwrap_or_else(|error| error.into_compile_error())
        .into()
}

/// Marks an async function as a handler, to be found by `Registry::discover`.
///
/// The function stays what it is, and can be called and tested as before. It takes the event and, if it wants to, the
/// `Context`, and returns `Result<(), HandlerError>`.
///
/// ```
/// use outbox::{Context, Event, HandlerError, Registry, on_event};
///
/// #[derive(serde::Serialize, serde::Deserialize, Event)]
/// struct OrderPlaced { order_id: u64 }
///
/// #[on_event]
/// async fn charge(event: OrderPlaced) -> Result<(), HandlerError> {
///     println!("charging order {}", event.order_id);
///     Ok(())
/// }
///
/// #[on_event(name = "mail", timeout_secs = 5, max_attempts = 3)]
/// async fn thank(event: OrderPlaced, ctx: Context) -> Result<(), HandlerError> {
///     println!("order {}, try {}", event.order_id, ctx.attempt());
///     Ok(())
/// }
///
/// # fn main() -> Result<(), outbox::RegistryError> {
/// let dispatcher = Registry::new().discover().build()?;
/// assert_eq!(dispatcher.handler_counts()["OrderPlaced"], 2);
/// # Ok(())
/// # }
/// ```
///
/// A function that takes `&mut PgConnection` second runs in a transaction of its own, with one committed effect per event;
/// it needs the facade with Postgres, and an `outbox::PgInbox` among the registry's state:
///
/// ```text
/// #[on_event]
/// async fn bill(event: OrderPlaced, tx: &mut PgConnection, ctx: Context) -> Result<(), HandlerError> { … }
///
/// Registry::new().state(PgInbox::new(pool, &Names::default())).discover()
/// ```
///
/// # Options
/// All are optional; what is left out follows the relay's settings.
///
/// | Option | Means |
/// | --- | --- |
/// | `name = "…"` | the handler's name, stored beside events that failed in part. Default: the last module and the function, `billing::charge`; so give it by hand before you move or rename the function |
/// | `timeout_secs = N` | how long one try may take, in seconds; `0.5` works too |
/// | `max_attempts = N` | how many tries the handler takes part in |
/// | `retry = …` | a `RetryPolicy`, such as `RetryPolicy::none()`; `max_attempts` beside it changes its number of tries |
/// | `concurrency = N` | how many events of this type one relay may have in flight |
/// | `key = "…"` | what a failed event means for its ordering key: `"go_on"`, `"stop"` or `"park"` |
/// | `crate = "…"` | the path of the crate `outbox`, if it is not found in `Cargo.toml` |
///
/// Generic functions and methods cannot be marked; register those by hand. A crate that the program names in its manifest
/// but nowhere in its code is not linked, and its handlers are not found; `use that_crate as _;` links it.
#[proc_macro_attribute]
pub fn on_event(options: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    let expanded = on_event::expand(options.into(), &function);
    // The function is kept even if the macro is used wrongly: its callers are not at fault.
    let rest = expanded.unwrap_or_else(|error| error.into_compile_error());
    quote::quote! { #function #rest }.into()
}
