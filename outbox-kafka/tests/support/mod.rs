//! What the tests of the dispatcher share.

#![expect(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod cluster;
pub(crate) mod event;
pub(crate) mod group;
pub(crate) mod model_broker;
pub(crate) mod naive;
pub(crate) mod relay;
pub(crate) mod scene;
pub(crate) mod table;
pub(crate) mod verdict;
pub(crate) mod wire;
