//! Where the random pick among the members of a shard group comes from.

use std::cell::Cell;
use std::sync::Arc;

/// A source of uniformly distributed numbers.
#[derive(Clone)]
pub(crate) enum Random {
    /// A small generator per thread, each with a seed of its own.
    Thread,
    /// What the user gave.
    Given(Arc<dyn Fn() -> u64 + Send + Sync>),
}

impl Random {
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        match self {
            Random::Thread => thread_next(),
            Random::Given(source) => source(),
        }
    }
}

thread_local! {
    /// Every `RandomState` has keys of its own, so threads start at unrelated places.
    static STATE: Cell<u64> = Cell::new(ahash::RandomState::new().hash_one(0_u64));
}

/// SplitMix64: one addition and a mix; good enough to spread load, and nothing here is a secret.
fn thread_next() -> u64 {
    STATE.with(|state| {
        let counter = state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        state.set(counter);
        let mut z = counter;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
