//! The macros #[derive(Event)] and #[on_event].
