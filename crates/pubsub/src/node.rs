//! The nodes of the tree: what hangs at a path, and how a change makes the next version of it.
//!
//! A node holds the subscriptions whose path ends here and the way on: one child for "any key" and
//! one per key. Everything in it is persistent: cloning a node shares its parts, and changing the
//! clone copies only what the change touches (`Arc::make_mut`). So the functions below read as
//! plain in-place edits of a tree that nobody else sees yet.

use std::cmp::Ordering;
use std::hash::Hash;
use std::sync::Arc;

use crate::interest::Reach;
use crate::ordered::Ordered;
use crate::trie::{Need, Trie};
use crate::{Equivalent, Segment};

/// A subscription as the tree holds it.
pub(crate) struct Record<S> {
    pub(crate) subscriber: S,
    /// Counts up; unique in the tree.
    pub(crate) joined: u64,
    pub(crate) reach: Reach,
    pub(crate) shard: Option<Box<Shard>>,
}

/// How a subscription shares with others.
pub(crate) struct Shard {
    /// Not empty.
    pub(crate) id: Box<[u8]>,
    pub(crate) name: Box<[u8]>,
}

/// A subscription at one of its nodes.
pub(crate) struct Member<S> {
    pub(crate) record: Arc<Record<S>>,
    /// Copied from the record, so that publishing need not look there.
    pub(crate) reach: Reach,
}

/// The members of a node with one shard id; never empty.
pub(crate) struct Group<S> {
    /// By name, then by when they joined.
    pub(crate) members: Ordered<Member<S>>,
    /// How many of them have a name.
    pub(crate) named: u32,
}

pub(crate) struct Node<K, S> {
    /// Those that share with nobody, as they joined.
    pub(crate) plain: Ordered<Member<S>>,
    /// By shard id; none if there are none. On its own, since few nodes have any, and what a
    /// publish passes should fit in a cache line or two.
    pub(crate) groups: Option<Arc<Ordered<Group<S>>>>,
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

impl<S> Record<S> {
    fn shard_id(&self) -> &[u8] {
        self.shard.as_ref().map_or(&[], |shard| &shard.id)
    }

    fn name(&self) -> &[u8] {
        self.shard.as_ref().map_or(&[], |shard| &shard.name)
    }
}

impl<K, S> Node<K, S> {
    pub(crate) const fn new() -> Self {
        Node {
            plain: Ordered::Empty,
            groups: None,
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

    #[inline]
    pub(crate) fn each_group<'a>(&'a self, visit: &mut impl FnMut(&'a Group<S>)) {
        if let Some(groups) = &self.groups {
            groups.for_each(visit);
        }
    }

    fn need(&self) -> Need {
        if self.is_end() && self.plain.is_empty() && self.groups.is_none() {
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
            self.join(record);
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
            self.leave(record);
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

    fn join(&mut self, record: &Arc<Record<S>>) {
        let member = Member {
            record: Arc::clone(record),
            reach: record.reach,
        };
        let Some(shard) = &record.shard else {
            self.plain.insert(member, &|other| other.side_of(record));
            return;
        };
        let groups = Arc::make_mut(self.groups.get_or_insert_default());
        let side = |group: &Group<S>| group.side_of(record);
        let named = u32::from(!shard.name.is_empty());
        match groups.get_mut(&side) {
            Some(group) => {
                group.members.insert(member, &|other| other.side_of(record));
                group.named += named;
            }
            None => {
                let members = Ordered::One(member);
                groups.insert(Group { members, named }, &side);
            }
        }
    }

    fn leave(&mut self, record: &Record<S>) {
        let Some(shard) = &record.shard else {
            self.plain.remove(&|other| other.side_of(record));
            return;
        };
        let Some(groups) = &mut self.groups else {
            return;
        };
        let groups = Arc::make_mut(groups);
        let side = |group: &Group<S>| group.side_of(record);
        match groups.get_mut(&side) {
            // The last one takes the group along.
            Some(group) if group.members.len() == 1 => {
                groups.remove(&side);
            }
            Some(group) => {
                group.members.remove(&|other| other.side_of(record));
                group.named -= u32::from(!shard.name.is_empty());
            }
            None => {}
        }
        if groups.is_empty() {
            self.groups = None;
        }
    }
}

impl<S> Member<S> {
    /// The same for all members of one subscription and for no other.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.record).addr()
    }

    /// Where this member stands, seen from `record`: by name, then by when they joined.
    fn side_of(&self, record: &Record<S>) -> Ordering {
        let (name, other) = (self.record.name(), record.name());
        // Most have no name. To compare nothing with nothing can be surprisingly slow: `memcmp`
        // with wide vectors looks at the dangling pointers of empty slices, if only with an empty
        // mask, and the processor then takes a long way round the fault.
        let by_name = match (name.is_empty(), other.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => name.cmp(other),
        };
        by_name.then(self.record.joined.cmp(&record.joined))
    }
}

impl<S> Group<S> {
    /// Where this group stands, seen from the one that `record` belongs to.
    fn side_of(&self, record: &Record<S>) -> Ordering {
        let some_member = self.members.get(0);
        let id = some_member.map_or(&[][..], |member| member.record.shard_id());
        id.cmp(record.shard_id())
    }
}

// Written by hand: derived ones would ask for `S: Clone`.
impl<S> Clone for Member<S> {
    fn clone(&self) -> Self {
        Member {
            record: Arc::clone(&self.record),
            reach: self.reach,
        }
    }
}

impl<S> Clone for Group<S> {
    fn clone(&self) -> Self {
        Group {
            members: self.members.clone(),
            named: self.named,
        }
    }
}

impl<K, S> Clone for Node<K, S> {
    fn clone(&self) -> Self {
        Node {
            plain: self.plain.clone(),
            groups: self.groups.clone(),
            any: self.any.clone(),
            children: self.children.clone(),
        }
    }
}
