//! What may happen to the source in memory.

use proptest::prelude::*;

pub(crate) const RELAYS: usize = 3;

/// How a relay ends the next event of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Complete,
    Retry(u16),
    Fail,
    Release(u16),
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Publish {
        key: Option<u8>,
        kind: usize,
        delay: u16,
    },
    /// Claims; the type of that number is paused.
    Claim {
        relay: usize,
        events: u32,
        paused: Option<usize>,
    },
    Handle {
        relay: usize,
        run: usize,
        end: End,
    },
    /// The relay is gone with what it holds: after it has handled one more event, which nobody hears of, or at once.
    Crash {
        relay: usize,
        handled: bool,
    },
    Wait(u16),
    Redrive(usize),
    Discard(usize),
    Resume(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let end = prop_oneof![
        4 => Just(End::Complete),
        2 => (0_u16..300).prop_map(End::Retry),
        2 => Just(End::Fail),
        1 => (0_u16..100).prop_map(End::Release),
    ];
    let delay = prop_oneof![4 => Just(0_u16), 1 => 1_u16..500];
    let relay = 0..RELAYS;
    prop_oneof![
        6 => (proptest::option::weighted(0.9, 0_u8..3), 0_usize..3, delay)
            .prop_map(|(key, kind, delay)| Op::Publish { key, kind, delay }),
        5 => (relay.clone(), 1_u32..8, proptest::option::weighted(0.2, 0_usize..3))
            .prop_map(|(relay, events, paused)| Op::Claim { relay, events, paused }),
        10 => (relay.clone(), 0_usize..4, end).prop_map(|(relay, run, end)| Op::Handle { relay, run, end }),
        1 => (relay, any::<bool>()).prop_map(|(relay, handled)| Op::Crash { relay, handled }),
        2 => (1_u16..600).prop_map(Op::Wait),
        2 => (0_usize..8).prop_map(Op::Redrive),
        1 => (0_usize..8).prop_map(Op::Discard),
        1 => (0_u8..3).prop_map(Op::Resume),
    ]
}

pub(crate) fn ops() -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(), 1..120)
}
