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

/// Bits of the hash that one level uses up.
const BITS: u32 = 4;
/// Slots of a branch that has all its children.
const WIDTH: u32 = 1 << BITS;
const FULL: u32 = (1 << WIDTH) - 1;

/// The map. Cloning it is cheap and shares everything.
pub(crate) struct Trie<K, V> {
    /// Which of the slots are there.
    bitmap: u32,
    /// Those that are there, in order; none for an empty map.
    slots: Option<Slots<K, V>>,
}

type Slots<K, V> = Arc<[Slot<K, V>]>;

enum Slot<K, V> {
    Leaf {
        hash: u64,
        entry: Arc<Entry<K, V>>,
    },
    Branch {
        bitmap: u32,
        slots: Slots<K, V>,
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

impl<K, V> Trie<K, V> {
    pub(crate) const fn new() -> Self {
        Trie {
            bitmap: 0,
            slots: None,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_none()
    }

    /// Looks up `key`, whose hash is `hash`.
    #[inline]
    pub(crate) fn get<Q: Equivalent<K>>(&self, hash: u64, key: &Q) -> Option<&V> {
        let mut bitmap = self.bitmap;
        let mut slots: &[Slot<K, V>] = self.slots.as_deref()?;
        let mut rest = hash;
        loop {
            let bit = bit(rest);
            if bitmap & bit == 0 {
                return None;
            }
            match &slots[index(bitmap, bit)] {
                Slot::Leaf { hash: own, entry } => {
                    let found = *own == hash && key.equivalent(&entry.key);
                    return found.then_some(&entry.value);
                }
                Slot::Branch {
                    bitmap: inner,
                    slots: deeper,
                } => {
                    bitmap = *inner;
                    slots = deeper;
                    rest >>= BITS;
                }
                Slot::Bucket { hash: own, entries } => {
                    let mut same_hash = entries.iter().filter(|_| *own == hash);
                    return same_hash
                        .find(|entry| key.equivalent(&entry.key))
                        .map(|entry| &entry.value);
                }
            }
        }
    }

    /// Calls `visit` with each value.
    #[cfg(test)]
    pub(crate) fn for_each(&self, visit: &mut impl FnMut(&K, &V)) {
        fn walk<K, V>(slots: &[Slot<K, V>], visit: &mut impl FnMut(&K, &V)) {
            for slot in slots {
                match slot {
                    Slot::Leaf { entry, .. } => visit(&entry.key, &entry.value),
                    Slot::Branch { slots, .. } => walk(slots, visit),
                    Slot::Bucket { entries, .. } => {
                        entries.iter().for_each(|e| visit(&e.key, &e.value));
                    }
                }
            }
        }
        walk(self.slots.as_deref().unwrap_or_default(), visit);
    }
}

/// The bit of the slot where the lowest bits of `rest` lead.
#[inline]
fn bit(rest: u64) -> u32 {
    1 << (rest as u32 & (WIDTH - 1))
}

/// How many present slots come before the one of `bit`.
#[inline]
fn index(bitmap: u32, bit: u32) -> usize {
    if bitmap == FULL {
        // The upper levels of a large map: no counting.
        bit.trailing_zeros() as usize
    } else {
        (bitmap & (bit - 1)).count_ones() as usize
    }
}

impl<K: Eq + Clone, V: Clone> Trie<K, V> {
    /// The value of `key`, for changing it; `make` gives the first one.
    pub(crate) fn get_or_insert_with(
        &mut self,
        hash: u64,
        key: &K,
        make: &mut dyn FnMut() -> V,
    ) -> &mut V {
        let slots = self.slots.get_or_insert_with(|| Arc::new([]));
        reach(&mut self.bitmap, slots, hash, 0, key, make)
    }

    /// Changes the value of `key`, if there is one, and takes it out if `change` says that it is
    /// not needed any more. Returns whether it was taken out.
    pub(crate) fn update(
        &mut self,
        hash: u64,
        key: &K,
        change: &mut dyn FnMut(&mut V) -> Need,
    ) -> bool {
        let Some(slots) = &mut self.slots else {
            return false;
        };
        let removed = update(&mut self.bitmap, slots, hash, 0, key, change);
        if self.bitmap == 0 {
            self.slots = None;
        }
        removed
    }
}

/// Whether a value is still needed after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Keep,
    Remove,
}

/// Goes down to the entry of `key`, making what is missing.
fn reach<'a, K: Eq + Clone, V: Clone>(
    bitmap: &mut u32,
    slots: &'a mut Slots<K, V>,
    hash: u64,
    shift: u32,
    key: &K,
    make: &mut dyn FnMut() -> V,
) -> &'a mut V {
    let bit = bit(hash >> shift);
    let at = index(*bitmap, bit);
    if *bitmap & bit == 0 {
        *slots = with_inserted(slots, at, leaf(hash, key.clone(), make()));
        *bitmap |= bit;
    } else if slots[at].hash().is_some_and(|other| other != hash) {
        // Another hash has the place so far: push it one level down and go on there.
        let slot = &mut Arc::make_mut(slots)[at];
        let other = slot.clone();
        *slot = Slot::Branch {
            bitmap: self::bit(other.hash().unwrap_or_default() >> (shift + BITS)),
            slots: Arc::new([other]),
        };
    }
    let slot = &mut Arc::make_mut(slots)[at];
    if let Slot::Leaf { entry, .. } = slot
        && entry.key != *key
    {
        *slot = Slot::Bucket {
            hash,
            entries: Arc::new(vec![Arc::clone(entry)]),
        };
    }
    match slot {
        Slot::Leaf { entry, .. } => &mut Arc::make_mut(entry).value,
        Slot::Branch { bitmap, slots } => reach(bitmap, slots, hash, shift + BITS, key, make),
        Slot::Bucket { entries, .. } => {
            let entries = Arc::make_mut(entries);
            let at = entries.iter().position(|entry| entry.key == *key);
            let at = at.unwrap_or_else(|| {
                entries.push(Arc::new(Entry {
                    key: key.clone(),
                    value: make(),
                }));
                entries.len() - 1
            });
            &mut Arc::make_mut(&mut entries[at]).value
        }
    }
}

fn update<K: Eq + Clone, V: Clone>(
    bitmap: &mut u32,
    slots: &mut Slots<K, V>,
    hash: u64,
    shift: u32,
    key: &K,
    change: &mut dyn FnMut(&mut V) -> Need,
) -> bool {
    let bit = bit(hash >> shift);
    let at = index(*bitmap, bit);
    if *bitmap & bit == 0 || slots[at].hash().is_some_and(|other| other != hash) {
        return false;
    }
    let slot = &mut Arc::make_mut(slots)[at];
    match slot {
        Slot::Leaf { entry, .. } => {
            if entry.key != *key || change(&mut Arc::make_mut(entry).value) == Need::Keep {
                return false;
            }
            *slots = without(slots, at);
            *bitmap &= !bit;
            true
        }
        Slot::Branch {
            bitmap: inner,
            slots: deeper,
        } => {
            let removed = update(inner, deeper, hash, shift + BITS, key, change);
            // A branch with a single leaf (or bucket) is that leaf.
            if let [only] = &**deeper
                && only.hash().is_some()
            {
                *slot = only.clone();
            }
            removed
        }
        Slot::Bucket { entries, .. } => {
            let entries = Arc::make_mut(entries);
            let Some(at) = entries.iter().position(|entry| entry.key == *key) else {
                return false;
            };
            if change(&mut Arc::make_mut(&mut entries[at]).value) == Need::Keep {
                return false;
            }
            entries.remove(at);
            if let [entry] = &entries[..] {
                *slot = Slot::Leaf {
                    hash,
                    entry: Arc::clone(entry),
                };
            }
            true
        }
    }
}

fn leaf<K, V>(hash: u64, key: K, value: V) -> Slot<K, V> {
    Slot::Leaf {
        hash,
        entry: Arc::new(Entry { key, value }),
    }
}

/// A copy of `items` with one more, in a single allocation.
pub(crate) fn with_inserted<T: Clone>(items: &[T], at: usize, item: T) -> Arc<[T]> {
    let (before, after) = items.split_at(at);
    let before = before.iter().cloned();
    before
        .chain(std::iter::once(item))
        .chain(after.iter().cloned())
        .collect()
}

/// A copy of `items` with one less, in a single allocation.
pub(crate) fn without<T: Clone>(items: &[T], at: usize) -> Arc<[T]> {
    let (before, after) = (&items[..at], &items[at + 1..]);
    before
        .iter()
        .cloned()
        .chain(after.iter().cloned())
        .collect()
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
            bitmap: self.bitmap,
            slots: self.slots.clone(),
        }
    }
}

impl<K, V> Clone for Slot<K, V> {
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
