//! A persistent map from keys to values: a hash array mapped trie.
//!
//! One node of the tree may have a hundred thousand children, and each change makes a new version
//! while readers still use the old one. So the map is a trie over the bits of a 64-bit hash:
//! a change copies the branches on the way to the entry, everything else is shared. Copying happens
//! by `Arc::make_mut`, hence a branch that only the new version owns is edited in place, and
//! several changes in one go copy each branch once.
//!
//! The hash only finds the place. Whether an entry is the one is decided by comparing keys; entries
//! whose whole hashes are equal share a bucket.

use std::sync::Arc;

use crate::Equivalent;

/// Bits of the hash that one level uses up. With more, levels are fewer, which a lookup hardly
/// feels; but a change increments the reference counts of all slots on its way.
const BITS: u32 = 3;
/// Slots of a branch. All of them are there, empty or not: a lookup then needs no counting, which
/// is worth more than the memory of those at the ends of the trie.
const WIDTH: usize = 1 << BITS;

/// The map. Cloning it is cheap and shares everything.
pub(crate) struct Trie<K, V> {
    root: Slot<K, V>,
}

enum Slot<K, V> {
    Empty,
    Leaf {
        /// The upper half of the hash: most other keys are told apart without a look at the entry.
        mark: u32,
        entry: Arc<Entry<K, V>>,
    },
    /// More than one slot in use, or a single one that is a branch again.
    Branch(Arc<[Slot<K, V>; WIDTH]>),
    /// At least two entries with one hash.
    Bucket(Arc<Vec<Arc<Entry<K, V>>>>),
}

#[derive(Clone)]
struct Entry<K, V> {
    hash: u64,
    key: K,
    value: V,
}

/// The slot of a branch where the lowest bits of `rest` lead.
#[inline]
fn place(rest: u64) -> usize {
    rest as usize % WIDTH
}

#[inline]
fn mark(hash: u64) -> u32 {
    (hash >> 32) as u32
}

impl<K, V> Trie<K, V> {
    pub(crate) const fn new() -> Self {
        Trie { root: Slot::Empty }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self.root, Slot::Empty)
    }

    /// Looks up `key`, whose hash is `hash`: the key as it is stored, and its value.
    #[inline]
    pub(crate) fn get<Q: Equivalent<K>>(&self, hash: u64, key: &Q) -> Option<(&K, &V)> {
        let mut slot = &self.root;
        let mut rest = hash;
        while let Slot::Branch(slots) = slot {
            slot = &slots[place(rest)];
            rest >>= BITS;
        }
        let entry = match slot {
            Slot::Leaf { mark: own, entry } if *own == mark(hash) => {
                Some(entry).filter(|entry| key.equivalent(&entry.key))
            }
            Slot::Bucket(entries) => entries.iter().find(|entry| key.equivalent(&entry.key)),
            _ => None,
        };
        entry.map(|entry| (&entry.key, &entry.value))
    }
}

/// Whether a value is still needed after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Keep,
    Remove,
}

impl<K: Eq + Clone, V: Clone> Trie<K, V> {
    /// The value of `key`, for changing it; `make` gives the first one.
    pub(crate) fn get_or_insert_with(
        &mut self,
        hash: u64,
        key: &K,
        make: &mut dyn FnMut() -> V,
    ) -> &mut V {
        self.root.reach(hash, 0, key, make)
    }

    /// Changes the value of `key`, if there is one, and takes it out if `change` says that it is
    /// not needed any more. Returns whether it was taken out.
    pub(crate) fn update(
        &mut self,
        hash: u64,
        key: &K,
        change: &mut dyn FnMut(&mut V) -> Need,
    ) -> bool {
        self.root.update(hash, 0, key, change)
    }
}

impl<K: Eq + Clone, V: Clone> Slot<K, V> {
    /// Goes down to the entry of `key`, making what is missing. `shift` bits of the hash have led
    /// to this slot.
    fn reach(&mut self, hash: u64, shift: u32, key: &K, make: &mut dyn FnMut() -> V) -> &mut V {
        if let Some(other) = self.hash()
            && other != hash
        {
            // Another hash has the place so far: push it one level down.
            let mut slots = [const { Slot::Empty }; WIDTH];
            slots[place(other >> shift)] = std::mem::replace(self, Slot::Empty);
            *self = Slot::Branch(Arc::new(slots));
        }
        match self {
            Slot::Empty => {
                *self = Slot::Leaf {
                    mark: mark(hash),
                    entry: Entry::new(hash, key, make()),
                };
            }
            Slot::Leaf { entry, .. } if entry.key != *key => {
                *self = Slot::Bucket(Arc::new(vec![Arc::clone(entry)]));
            }
            _ => {}
        }
        let entry = match self {
            Slot::Branch(slots) => {
                let slot = &mut Arc::make_mut(slots)[place(hash >> shift)];
                return slot.reach(hash, shift + BITS, key, make);
            }
            Slot::Bucket(entries) => {
                let entries = Arc::make_mut(entries);
                let at = entries.iter().position(|entry| entry.key == *key);
                let at = at.unwrap_or_else(|| {
                    entries.push(Entry::new(hash, key, make()));
                    entries.len() - 1
                });
                &mut entries[at]
            }
            Slot::Leaf { entry, .. } => entry,
            Slot::Empty => unreachable!("it was filled above"),
        };
        &mut Arc::make_mut(entry).value
    }

    fn update(
        &mut self,
        hash: u64,
        shift: u32,
        key: &K,
        change: &mut dyn FnMut(&mut V) -> Need,
    ) -> bool {
        let mut needless =
            |entry: &mut Arc<Entry<K, V>>| change(&mut Arc::make_mut(entry).value) == Need::Remove;
        match self {
            Slot::Leaf { entry, .. } if entry.hash == hash && entry.key == *key => {
                let removed = needless(entry);
                if removed {
                    *self = Slot::Empty;
                }
                removed
            }
            Slot::Branch(slots) => {
                let slots = Arc::make_mut(slots);
                let removed = slots[place(hash >> shift)].update(hash, shift + BITS, key, change);
                if removed && let Some(only) = only_end(slots) {
                    *self = only;
                }
                removed
            }
            Slot::Bucket(entries) if entries[0].hash == hash => {
                let entries = Arc::make_mut(entries);
                let Some(at) = entries.iter().position(|entry| entry.key == *key) else {
                    return false;
                };
                let removed = needless(&mut entries[at]);
                if removed {
                    entries.remove(at);
                }
                if let [entry] = &entries[..] {
                    *self = Slot::Leaf {
                        mark: mark(hash),
                        entry: Arc::clone(entry),
                    };
                }
                removed
            }
            _ => false,
        }
    }

    /// The one hash of everything here; a branch has many.
    fn hash(&self) -> Option<u64> {
        match self {
            Slot::Leaf { entry, .. } => Some(entry.hash),
            Slot::Bucket(entries) => Some(entries[0].hash),
            Slot::Empty | Slot::Branch(_) => None,
        }
    }
}

/// What can take a branch's place: the leaf or bucket that is all it has.
fn only_end<K, V>(slots: &[Slot<K, V>; WIDTH]) -> Option<Slot<K, V>> {
    let mut used = slots.iter().filter(|slot| !matches!(slot, Slot::Empty));
    match (used.next(), used.next()) {
        (Some(only @ (Slot::Leaf { .. } | Slot::Bucket(_))), None) => Some(only.clone()),
        _ => None,
    }
}

impl<K: Clone, V> Entry<K, V> {
    fn new(hash: u64, key: &K, value: V) -> Arc<Self> {
        Arc::new(Entry {
            hash,
            key: key.clone(),
            value,
        })
    }
}

// Written by hand: derived ones would ask for `K: Clone` and `V: Clone`.
impl<K, V> Clone for Trie<K, V> {
    fn clone(&self) -> Self {
        Trie {
            root: self.root.clone(),
        }
    }
}

impl<K, V> Clone for Slot<K, V> {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Slot::Empty => Slot::Empty,
            Slot::Leaf { mark, entry } => Slot::Leaf {
                mark: *mark,
                entry: Arc::clone(entry),
            },
            Slot::Branch(slots) => Slot::Branch(Arc::clone(slots)),
            Slot::Bucket(entries) => Slot::Bucket(Arc::clone(entries)),
        }
    }
}

#[cfg(test)]
mod tests {
    //! The map against a `HashMap`, with hashes that collide as much as each case likes.

    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    impl<K, V> Trie<K, V> {
        fn for_each(&self, visit: &mut impl FnMut(&K, &V)) {
            fn walk<K, V>(slot: &Slot<K, V>, visit: &mut impl FnMut(&K, &V)) {
                match slot {
                    Slot::Empty => {}
                    Slot::Leaf { mark: own, entry } => {
                        assert_eq!(*own, mark(entry.hash));
                        visit(&entry.key, &entry.value);
                    }
                    Slot::Branch(slots) => {
                        assert!(only_end(slots).is_none(), "needless branch");
                        assert!(slots.iter().any(|slot| !matches!(slot, Slot::Empty)));
                        slots.iter().for_each(|slot| walk(slot, visit));
                    }
                    Slot::Bucket(entries) => {
                        assert!(entries.len() > 1, "needless bucket");
                        entries
                            .iter()
                            .for_each(|entry| visit(&entry.key, &entry.value));
                    }
                }
            }
            walk(&self.root, visit);
        }
    }

    fn content(trie: &Trie<u32, u32>) -> HashMap<u32, u32> {
        let mut content = HashMap::new();
        trie.for_each(&mut |key, value| {
            assert_eq!(content.insert(*key, *value), None, "{key} is there twice");
        });
        content
    }

    #[derive(Clone, Copy, Debug)]
    enum Hashes {
        Spread,
        /// Alike up to the last level.
        HighBits,
        /// A few values for all keys.
        Colliding,
    }

    impl Hashes {
        fn of(self, key: u32) -> u64 {
            match self {
                Hashes::Spread => u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15),
                Hashes::HighBits => u64::from(key % 32) << 59 | 7,
                Hashes::Colliding => u64::from(key % 3) << 33,
            }
        }
    }

    proptest! {
        #[test]
        fn trie_is_a_hash_map(
            hashes in prop_oneof![
                Just(Hashes::Spread), Just(Hashes::HighBits), Just(Hashes::Colliding)
            ],
            steps in proptest::collection::vec((0..4_u8, 0..200_u32, any::<u32>()), 0..500),
        ) {
            let mut trie = Trie::new();
            let mut model = HashMap::new();
            for (step, key, value) in steps {
                let hash = hashes.of(key);
                let before = trie.clone();
                let known = content(&before);
                match step {
                    0 | 1 => {
                        let new = !model.contains_key(&key);
                        let mut made = false;
                        let place = trie.get_or_insert_with(hash, &key, &mut || {
                            made = true;
                            value
                        });
                        *place = value;
                        prop_assert_eq!(made, new);
                        model.insert(key, value);
                    }
                    2 => {
                        let removed = trie.update(hash, &key, &mut |_| Need::Remove);
                        prop_assert_eq!(removed, model.remove(&key).is_some());
                    }
                    _ => {
                        let removed = trie.update(hash, &key, &mut |place| {
                            *place = value;
                            Need::Keep
                        });
                        prop_assert!(!removed);
                        model.entry(key).and_modify(|place| *place = value);
                    }
                }
                prop_assert_eq!(trie.get(hash, &key), model.get_key_value(&key));
                prop_assert_eq!(trie.is_empty(), model.is_empty());
                prop_assert_eq!(content(&before), known, "an old version changed");
            }
            prop_assert_eq!(content(&trie), model.clone());
            for key in 0..200 {
                prop_assert_eq!(trie.get(hashes.of(key), &key), model.get_key_value(&key));
            }
            for key in model.into_keys() {
                prop_assert!(trie.update(hashes.of(key), &key, &mut |_| Need::Remove));
            }
            prop_assert!(trie.is_empty());
        }
    }
}
