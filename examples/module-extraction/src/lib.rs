//! A monolith of two modules, orders and billing, before and after billing becomes a service of its own.
//!
//! Read `billing.rs`: it is compiled into both, unchanged. Then compare the binaries, `monolith` and
//! `monolith-without-billing`: the difference is what the move takes. `docs/module-extraction.md` walks through it.

pub mod billing;
pub mod orders;
pub mod process;
