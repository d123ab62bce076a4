//! A persistent map from keys to values: a hash array mapped trie.
//!
//! One node of the tree may have a hundred thousand children, and each change makes a new version
//! while readers still use the old one. So the map is a trie over the bits of a 64-bit hash:
//! a change copies the branches on the way to the entry, everything else is shared. Copying happens
//! `Arc::make_mut`, hence a branch that only the new version owns is edited in place, and
//! several changes in one go copy each branch once.
//!
//! The hash only finds the place. Whether an entry is the one is decided by comparing keys; entries
//! whose whole hashes are equal share a bucket.

use std::sync::Arc;

use crate::Equivalent;
use crate::cow::{with_inserted, without};

/// Bits of the hash that one level uses up. Wider levels are fewer, which a lookup hardly feels;
/// but a change increments the reference counts of all slots on its way.
const BITS: u32 = 3;
/// Slots of a branch that has all its children.
const WIDTH: u32 = 1 << BITS;

/// Which slots a branch has, a bit for each.
type Bitmap = u8;

/// The map. Cloning it is cheap and shares everything.
pub(crate) struct Trie<K, V> {
    /// A single entry is a leaf here, without a branch.
    root: Option<Slot<K, V>>,
}

enum Slot<K, V> {
    Leaf {
        hash: u64,
        entry: Arc<Entry<K, V>>,
    },
    /// At least two slots, or a single one that is a branch again.
    Branch {
        bitmap: Bitmap,
        /// Those slots that are there, in order.
        slots: Arc<[Slot<K, V>]>,
    },
    /// At least two entries with one hash.
    Bucket {
        hash: u64,
        entries: Arc<Vec<Arc<Entry<K, V>>>>,
    },
}

#[derive(Clone)]
struct Entry<K, V> {
    key: K,
    value: V,
}

/// The bit of the slot where the lowest bits of `rest` lead.
#[inline]
fn bit(rest: u64) -> Bitmap {
    1 << (rest as u32 & (WIDTH - 1))
}

/// How many present slots come before the one of `bit`.
#[inline]
fn index(bitmap: Bitmap, bit: Bitmap) -> usize {
    if bitmap == Bitmap::MAX {
        // The upper levels of a large map: no counting.
        bit.trailing_zeros() as usize
    } else {
        (bitmap & (bit - 1)).count_ones() as usize
    }
}

impl<K, V> Trie<K, V> {
    pub(crate) const fn new() -> Self {
        Trie { root: None }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Looks up `key`, whose hash is `hash`: the key as it is stored, and its value.
    #[inline]
    pub(crate) fn get<Q: Equivalent<K>>(&self, hash: u64, key: &Q) -> Option<(&K, &V)> {
        let mut slot = self.root.as_ref()?;
        let mut rest = hash;
        while let Slot::Branch { bitmap, slots } = slot {
            let bit = bit(rest);
            if bitmap & bit == 0 {
                return None;
            }
            slot = &slots[index(*bitmap, bit)];
            rest >>= BITS;
        }
        let entry = match slot {
            Slot::Leaf { hash: own, entry } if *own == hash => {
                Some(entry).filter(|entry| key.equivalent(&entry.key))
            }
            Slot::Bucket { hash: own, entries } if *own == hash => {
                entries.iter().find(|entry| key.equivalent(&entry.key))
            }
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
        let root = self.root.get_or_insert_with(|| leaf(hash, key, make()));
        root.reach(hash, 0, key, make)
    }

    /// Changes the value of `key`, if there is one, and takes it out if `change` says that it is
    /// not needed any more. Returns whether it was taken out.
    pub(crate) fn update(
        &mut self,
        hash: u64,
        key: &K,
        change: &mut dyn FnMut(&mut V) -> Need,
    ) -> bool {
        let Some(root) = &mut self.root else {
            return false;
        };
        match root.update(hash, 0, key, change) {
            After::Same => false,
            After::Fewer => true,
            After::Empty => {
                self.root = None;
                true
            }
        }
    }
}

/// What became of a slot.
enum After {
    /// No entry was taken out.
    Same,
    /// One was, others are left.
    Fewer,
    /// The only one was; the slot is to go.
    Empty,
}

impl<K: Eq + Clone, V: Clone> Slot<K, V> {
    /// Goes down to the entry of `key`, making what is missing. `shift` bits of the hash have led
    /// to this slot.
    fn reach(&mut self, hash: u64, shift: u32, key: &K, make: &mut dyn FnMut() -> V) -> &mut V {
        if let Some(other) = self.hash()
            && other != hash
        {
            // Another hash has the place so far: push it one level down.
            *self = Slot::Branch {
                bitmap: bit(other >> shift),
                slots: Arc::new([self.clone()]),
            };
        }
        if let Slot::Leaf { entry, .. } = self
            && entry.key != *key
        {
            *self = Slot::Bucket {
                hash,
                entries: Arc::new(vec![Arc::clone(entry)]),
            };
        }
        match self {
            Slot::Leaf { entry, .. } => &mut Arc::make_mut(entry).value,
            Slot::Branch { bitmap, slots } => {
                let bit = bit(hash >> shift);
                let at = index(*bitmap, bit);
                if *bitmap & bit == 0 {
                    *slots = with_inserted(slots, at, leaf(hash, key, make()));
                    *bitmap |= bit;
                }
                Arc::make_mut(slots)[at].reach(hash, shift + BITS, key, make)
            }
            Slot::Bucket { entries, .. } => {
                let entries = Arc::make_mut(entries);
                let at = entries.iter().position(|entry| entry.key == *key);
                let at = at.unwrap_or_else(|| {
                    let (key, value) = (key.clone(), make());
                    entries.push(Arc::new(Entry { key, value }));
                    entries.len() - 1
                });
                &mut Arc::make_mut(&mut entries[at]).value
            }
        }
    }

    fn update(
        &mut self,
        hash: u64,
        shift: u32,
        key: &K,
        change: &mut dyn FnMut(&mut V) -> Need,
    ) -> After {
        if self.hash().is_some_and(|other| other != hash) {
            return After::Same;
        }
        match self {
            Slot::Leaf { entry, .. } => {
                if entry.key != *key || change(&mut Arc::make_mut(entry).value) == Need::Keep {
                    return After::Same;
                }
                After::Empty
            }
            Slot::Branch { bitmap, slots } => {
                let bit = bit(hash >> shift);
                if *bitmap & bit == 0 {
                    return After::Same;
                }
                let at = index(*bitmap, bit);
                match Arc::make_mut(slots)[at].update(hash, shift + BITS, key, change) {
                    After::Same => return After::Same,
                    After::Fewer => {}
                    After::Empty if slots.len() == 1 => return After::Empty,
                    After::Empty => {
                        *slots = without(slots, at);
                        *bitmap &= !bit;
                    }
                }
                // A branch with nothing but a leaf (or bucket) is that leaf.
                if let [only] = &**slots
                    && only.hash().is_some()
                {
                    *self = only.clone();
                }
                After::Fewer
            }
            Slot::Bucket { entries, .. } => {
                let entries = Arc::make_mut(entries);
                let Some(at) = entries.iter().position(|entry| entry.key == *key) else {
                    return After::Same;
                };
                if change(&mut Arc::make_mut(&mut entries[at]).value) == Need::Keep {
                    return After::Same;
                }
                entries.remove(at);
                if let [entry] = &entries[..] {
                    *self = Slot::Leaf {
                        hash,
                        entry: Arc::clone(entry),
                    };
                }
                After::Fewer
            }
        }
    }
}

fn leaf<K: Clone, V>(hash: u64, key: &K, value: V) -> Slot<K, V> {
    let key = key.clone();
    Slot::Leaf {
        hash,
        entry: Arc::new(Entry { key, value }),
    }
}

impl<K, V> Slot<K, V> {
    /// The one hash of everything here; a branch has many.
    #[inline]
    fn hash(&self) -> Option<u64> {
        match self {
            Slot::Leaf { hash, .. } | Slot::Bucket { hash, .. } => Some(*hash),
            Slot::Branch { .. } => None,
        }
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
            Slot::Leaf { hash, entry } => Slot::Leaf {
                hash: *hash,
                entry: Arc::clone(entry),
            },
            Slot::Branch { bitmap, slots } => Slot::Branch {
                bitmap: *bitmap,
                slots: Arc::clone(slots),
            },
            Slot::Bucket { hash, entries } => Slot::Bucket {
                hash: *hash,
                entries: Arc::clone(entries),
            },
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
                    Slot::Leaf { entry, .. } => visit(&entry.key, &entry.value),
                    Slot::Branch { bitmap, slots } => {
                        assert_eq!(bitmap.count_ones() as usize, slots.len());
                        assert!(
                            slots.len() > 1 || slots[0].hash().is_none(),
                            "needless branch"
                        );
                        slots.iter().for_each(|slot| walk(slot, visit));
                    }
                    Slot::Bucket { entries, .. } => {
                        assert!(entries.len() > 1, "needless bucket");
                        entries
                            .iter()
                            .for_each(|entry| visit(&entry.key, &entry.value));
                    }
                }
            }
            self.root.iter().for_each(|slot| walk(slot, visit));
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
