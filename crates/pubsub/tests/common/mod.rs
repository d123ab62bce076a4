//! An event made of numbers, which most tests publish.

use pubsub::Event;

/// Its keys, and its shard hash if it has one.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    pub keys: Vec<u32>,
    pub shard_hash: Option<u64>,
}

impl Event<u32> for Numbers {
    type Key<'a> = u32;

    fn key(&self, depth: usize) -> Option<u32> {
        self.keys.get(depth).copied()
    }

    fn shard_hash(&self) -> Option<u64> {
        self.shard_hash
    }
}
