//! The nodes of the tree: what hangs at a path, and how a change makes the next version of it.
//!
//! A node holds the subscriptions whose path ends here and the way on: one child for "any key" and
//! one per key. Everything in it is persistent: cloning a node shares its parts, and changing the
//! clone copies only what the change touches (`Arc::make_mut`). So the functions below read as
//! plain in-place edits of a tree that nobody else sees yet.

use std::hash::Hash;
use std::sync::Arc;

use crate::members::{Members, Record};
use crate::trie::{Need, Trie};
use crate::{Equivalent, Segment};

pub(crate) struct Node<K, S> {
    /// Those whose path ends here.
    pub(crate) members: Members<S>,
    pub(crate) any: Option<Arc<Node<K, S>>>,
    pub(crate) children: Trie<K, Node<K, S>>,
}

/// How keys are hashed, the same in all versions of a tree.
pub(crate) struct Hashing {
    pub(crate) state: ahash::RandomState,
    /// All ones, except where a test wants collisions.
    pub(crate) mask: u64,
}

impl Hashing {
    #[inline]
    pub(crate) fn hash(&self, key: &impl Hash) -> u64 {
        self.state.hash_one(key) & self.mask
    }
}

impl<K, S> Node<K, S> {
    pub(crate) const fn new() -> Self {
        Node {
            members: Members::new(),
            any: None,
            children: Trie::new(),
        }
    }

    /// Whether no path goes on from here.
    #[inline]
    pub(crate) fn is_end(&self) -> bool {
        self.any.is_none() && self.children.is_empty()
    }

    /// The children that an event passes whose key at this depth is `key`: the one for any key, and
    /// the one for its own.
    #[inline]
    pub(crate) fn ways<Q: Hash + Equivalent<K>>(
        &self,
        key: &Q,
        hashing: &Hashing,
    ) -> (Option<&Self>, Option<&Self>) {
        let own = match self.children.is_empty() {
            true => None,
            false => self.children.get(hashing.hash(key), key),
        };
        (self.any.as_deref(), own.map(|(_, own)| own))
    }

    fn need(&self) -> Need {
        if self.is_end() && self.members.is_empty() {
            Need::Remove
        } else {
            Need::Keep
        }
    }
}

impl<K: Hash + Eq + Clone, S> Node<K, S> {
    /// Adds a subscription at `path` from here. Returns how many nodes that made.
    pub(crate) fn add(
        &mut self,
        path: &[Segment<K>],
        record: &Arc<Record<S>>,
        hashing: &Hashing,
    ) -> usize {
        let Some((segment, rest)) = path.split_first() else {
            self.members.join(record);
            return 0;
        };
        let mut made = 0;
        let mut fresh = || {
            made = 1;
            Node::new()
        };
        let child = match segment {
            Segment::Any => Arc::make_mut(self.any.get_or_insert_with(|| Arc::new(fresh()))),
            Segment::Key(key) => {
                let hash = hashing.hash(key);
                self.children.get_or_insert_with(hash, key, &mut fresh)
            }
        };
        child.add(rest, record, hashing) + made
    }

    /// Takes the subscription at `path` away. Returns how many nodes that left without purpose;
    /// they are gone.
    pub(crate) fn remove(
        &mut self,
        path: &[Segment<K>],
        record: &Record<S>,
        hashing: &Hashing,
    ) -> usize {
        let Some((segment, rest)) = path.split_first() else {
            self.members.leave(record);
            return 0;
        };
        let mut gone = 0;
        match segment {
            Segment::Any => {
                if let Some(any) = &mut self.any {
                    let child = Arc::make_mut(any);
                    gone = child.remove(rest, record, hashing);
                    if child.need() == Need::Remove {
                        self.any = None;
                        gone += 1;
                    }
                }
            }
            Segment::Key(key) => {
                let hash = hashing.hash(key);
                let removed = self.children.update(hash, key, &mut |child| {
                    gone += child.remove(rest, record, hashing);
                    child.need()
                });
                gone += usize::from(removed);
            }
        }
        gone
    }
}

// Written by hand: a derived one would ask for `S: Clone`.
impl<K, S> Clone for Node<K, S> {
    fn clone(&self) -> Self {
        Node {
            members: self.members.clone(),
            any: self.any.clone(),
            children: self.children.clone(),
        }
    }
}
