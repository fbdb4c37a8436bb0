//! What the tests of the dispatcher share.

#![expect(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod acl;
pub(crate) mod cluster;
pub(crate) mod deliver;
pub(crate) mod event;
pub(crate) mod group;
pub(crate) mod model_broker;
pub(crate) mod naive;
pub(crate) mod raw;
pub(crate) mod relay;
pub(crate) mod revoking;
pub(crate) mod scene;
pub(crate) mod silent;
pub(crate) mod table;
pub(crate) mod verdict;
pub(crate) mod wire;

use std::time::Duration;

use tokio::time::Instant;

pub(crate) async fn until(mut reached: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(120);
    while !reached() {
        assert!(Instant::now() < patience, "it never came to that");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
