//! A hash table from addresses to small numbers that is emptied in no time.
//!
//! A batch notes what it has touched so far (nodes, subscriptions) by address. Emptying between
//! batches must not cost anything, whatever the largest batch was: each place carries the stamp of
//! the batch that wrote it, and one with an old stamp counts as free.

/// The table. Addresses must belong to things that are alive and stay where they are until the
/// next [`clear`](Table::clear).
pub(crate) struct Table {
    /// A power of two, at most half of it in use.
    places: Vec<Place>,
    used: usize,
    stamp: u32,
}

#[derive(Clone, Copy)]
struct Place {
    address: usize,
    stamp: u32,
    number: u32,
}

const FREE: Place = Place {
    address: 0,
    stamp: 0,
    number: 0,
};
const SMALLEST: usize = 64;

impl Table {
    /// A table that has no memory yet; it gets some when it is cleared for the first time.
    pub(crate) const fn new() -> Self {
        Table {
            places: Vec::new(),
            used: 0,
            stamp: 0,
        }
    }

    pub(crate) fn clear(&mut self) {
        if self.places.is_empty() {
            self.places = vec![FREE; SMALLEST];
        }
        self.used = 0;
        self.stamp = self.stamp.checked_add(1).unwrap_or_else(|| {
            self.places.fill(FREE);
            1
        });
    }

    /// The number of `address`; if it has none yet it gets the next one, from `next`.
    #[inline]
    pub(crate) fn number(&mut self, address: usize, next: impl FnOnce() -> u32) -> u32 {
        let at = self.find(address);
        let place = self.places[at];
        if place.stamp == self.stamp {
            return place.number;
        }
        let number = next();
        self.places[at] = Place {
            address,
            stamp: self.stamp,
            number,
        };
        self.used += 1;
        if self.used * 2 > self.places.len() {
            self.grow();
        }
        number
    }

    /// Where `address` is, or the free place where it belongs.
    #[inline]
    fn find(&self, address: usize) -> usize {
        let mask = self.places.len() - 1;
        // Fibonacci hashing: the upper bits of the product are well mixed.
        let mixed = (address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut at = (mixed >> 32) as usize & mask;
        loop {
            let place = &self.places[at];
            if place.stamp != self.stamp || place.address == address {
                return at;
            }
            at = (at + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let larger = vec![FREE; self.places.len() * 2];
        let smaller = std::mem::replace(&mut self.places, larger);
        for place in smaller {
            if place.stamp == self.stamp {
                let at = self.find(place.address);
                self.places[at] = place;
            }
        }
    }

    /// Gives memory back if there are more than `most` places.
    pub(crate) fn shrink(&mut self, most: usize) {
        if self.places.len() > most {
            *self = Table::new();
        }
    }
}
