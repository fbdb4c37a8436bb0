//! The relay on the in-memory source, with time and faults under control.

mod delivering;
mod stopping;
mod world;
