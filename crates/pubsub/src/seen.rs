//! Which subscriptions an event was delivered to already.
//!
//! Only subscriptions with overlapping paths are ever entered here, so it is empty for most events
//! and short for nearly all others.

use std::cell::Cell;
use std::collections::HashSet;

use smallvec::SmallVec;

/// Beyond this many, searching gives way to hashing.
const FEW: usize = 16;

type Many = HashSet<usize, ahash::RandomState>;

thread_local! {
    /// The table of the last event that needed one, so that the next one need not allocate.
    static SPARE: Cell<Option<Many>> = const { Cell::new(None) };
}

/// Largest table that is kept as a spare.
const SPARE_MAX: usize = 1 << 16;

/// A set of addresses.
pub(crate) struct Seen {
    few: SmallVec<[usize; FEW]>,
    many: Option<Many>,
}

impl Seen {
    #[inline]
    pub(crate) fn new() -> Self {
        Seen {
            few: SmallVec::new(),
            many: None,
        }
    }

    /// Enters `address`; false if it was there.
    pub(crate) fn insert(&mut self, address: usize) -> bool {
        if self.few.contains(&address) {
            return false;
        }
        if self.few.len() < FEW {
            self.few.push(address);
            return true;
        }
        // The spare is out of reach while the thread is ending.
        let spare = || SPARE.try_with(Cell::take).ok().flatten();
        let many = self.many.get_or_insert_with(|| spare().unwrap_or_default());
        many.insert(address)
    }
}

impl Drop for Seen {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut many) = self.many.take()
            && many.capacity() <= SPARE_MAX
        {
            many.clear();
            let _ = SPARE.try_with(|spare| spare.set(Some(many)));
        }
    }
}
