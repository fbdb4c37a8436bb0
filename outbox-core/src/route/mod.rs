//! Dispatchers made of dispatchers: one that chooses, and one that delivers to several.

mod fan_out;
mod parts;
mod router;

pub use fan_out::FanOut;
pub use router::Router;
