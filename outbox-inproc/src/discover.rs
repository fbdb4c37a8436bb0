//! Handlers collected at link time, one entry for each `#[on_event]`.

use crate::Registry;

/// One handler found at link time: how to put it into a registry.
#[derive(Debug)]
pub struct Discovered {
    pub(crate) register: fn(Registry) -> Registry,
}

impl Discovered {
    /// Keeps the way to register a handler.
    #[must_use]
    pub const fn new(register: fn(Registry) -> Registry) -> Self {
        Self { register }
    }
}

inventory::collect!(Discovered);

/// The name of a handler that was given none: its module and function, such as `billing::charge`.
#[must_use]
pub fn default_name(module_path: &str, function: &str) -> String {
    let module = module_path.rsplit("::").next().unwrap_or(module_path);
    format!("{module}::{function}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_name_is_the_last_module_and_the_function() {
        assert_eq!(default_name("shop::orders::billing", "charge"), "billing::charge");
        assert_eq!(default_name("shop", "charge"), "shop::charge");
    }
}
