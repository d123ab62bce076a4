//! What hangs at one node: the subscriptions whose path ends there.
//!
//! Nearly all of them have one path and share with nobody. A few of those lie right in the node, so
//! that a publish that has come this far need not go anywhere else; many are a list of their own.
//! The rest, those with several paths and the shard groups, is kept apart, since few nodes have any.

use std::cmp::Ordering;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::interest::Reach;
use crate::ordered::Ordered;

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

/// The subscriptions at a node.
pub(crate) struct Members<S> {
    pub(crate) single: Single<S>,
    /// None if there is nothing in it.
    pub(crate) rest: Option<Arc<Rest<S>>>,
}

/// Subscriptions with one path that share with nobody, as they joined.
pub(crate) enum Single<S> {
    Few(SmallVec<[Arc<Record<S>>; FEW]>),
    Many(Ordered<Arc<Record<S>>>),
}

/// Most subscriptions that lie in a node itself.
const FEW: usize = 6;

/// The others at a node.
pub(crate) struct Rest<S> {
    /// Those with several paths that share with nobody, as they joined.
    pub(crate) several: Ordered<Member<S>>,
    /// Those that share, by shard id.
    pub(crate) groups: Ordered<Group<S>>,
}

/// A subscription that publishing has to know more about.
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

impl<S> Members<S> {
    pub(crate) const fn new() -> Self {
        Members {
            single: Single::Few(SmallVec::new_const()),
            rest: None,
        }
    }

    #[inline]
    pub(crate) fn has_groups(&self) -> bool {
        self.rest
            .as_ref()
            .is_some_and(|rest| !rest.groups.is_empty())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.single.is_empty() && self.rest.is_none()
    }

    pub(crate) fn join(&mut self, record: &Arc<Record<S>>) {
        if record.is_single() {
            self.single.insert(record);
            return;
        }
        let rest = Arc::make_mut(self.rest.get_or_insert_default());
        let member = Member {
            record: Arc::clone(record),
            reach: record.reach,
        };
        let Some(shard) = &record.shard else {
            rest.several.insert(member, &|other| other.side_of(record));
            return;
        };
        let side = |group: &Group<S>| group.side_of(record);
        let named = u32::from(!shard.name.is_empty());
        match rest.groups.get_mut(&side) {
            Some(group) => {
                group.members.insert(member, &|other| other.side_of(record));
                group.named += named;
            }
            None => {
                let members = Ordered::One(member);
                rest.groups.insert(Group { members, named }, &side);
            }
        }
    }

    pub(crate) fn leave(&mut self, record: &Record<S>) {
        if record.is_single() {
            self.single.remove(record);
            return;
        }
        let Some(rest) = &mut self.rest else {
            return;
        };
        let rest = Arc::make_mut(rest);
        match &record.shard {
            None => {
                rest.several.remove(&|other| other.side_of(record));
            }
            Some(shard) => {
                let side = |group: &Group<S>| group.side_of(record);
                match rest.groups.get_mut(&side) {
                    // The last one takes the group along.
                    Some(group) if group.members.len() == 1 => {
                        rest.groups.remove(&side);
                    }
                    Some(group) => {
                        group.members.remove(&|other| other.side_of(record));
                        group.named -= u32::from(!shard.name.is_empty());
                    }
                    None => {}
                }
            }
        }
        if rest.several.is_empty() && rest.groups.is_empty() {
            self.rest = None;
        }
    }
}

impl<S> Single<S> {
    /// Calls `visit` with each of them.
    #[inline]
    pub(crate) fn for_each<'a>(&'a self, visit: &mut impl FnMut(&'a Record<S>)) {
        match self {
            Single::Few(few) => few.iter().for_each(|record| visit(record)),
            Single::Many(many) => many.for_each(&mut |record| visit(record)),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Single::Few(few) => few.is_empty(),
            Single::Many(many) => many.is_empty(),
        }
    }

    fn insert(&mut self, record: &Arc<Record<S>>) {
        let side = |other: &Arc<Record<S>>| other.side_of(record);
        if let Single::Few(few) = self {
            if few.len() < FEW {
                let at = few.partition_point(|other| side(other).is_lt());
                few.insert(at, Arc::clone(record));
                return;
            }
            *self = Single::Many(Ordered::Leaf(few.iter().cloned().collect()));
        }
        if let Single::Many(many) = self {
            many.insert(Arc::clone(record), &side);
        }
    }

    fn remove(&mut self, record: &Record<S>) {
        let side = |other: &Arc<Record<S>>| other.side_of(record);
        match self {
            Single::Few(few) => {
                if let Ok(at) = few.binary_search_by(side) {
                    few.remove(at);
                }
            }
            Single::Many(many) => {
                many.remove(&side);
                // Not as soon as they would fit, lest one that comes and goes moves all the others.
                if many.len() <= FEW / 2 {
                    let mut few = SmallVec::new();
                    many.for_each(&mut |record| few.push(Arc::clone(record)));
                    *self = Single::Few(few);
                }
            }
        }
    }
}

impl<S> Record<S> {
    /// Whether publishing need not know more about it than that it is there.
    fn is_single(&self) -> bool {
        self.reach == Reach::One && self.shard.is_none()
    }

    fn shard_id(&self) -> &[u8] {
        self.shard.as_ref().map_or(&[], |shard| &shard.id)
    }

    fn name(&self) -> &[u8] {
        self.shard.as_ref().map_or(&[], |shard| &shard.name)
    }

    /// Where this one stands, seen from `other`: by name, then by when they joined.
    fn side_of(&self, other: &Record<S>) -> Ordering {
        let names = (self.name(), other.name());
        // Most have no name. To compare nothing with nothing can be surprisingly slow: `memcmp`
        // with wide vectors looks at the dangling pointers of empty slices, if only with an empty
        // mask, and the processor then takes a long way round the fault.
        let by_name = match (names.0.is_empty(), names.1.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => names.0.cmp(names.1),
        };
        by_name.then(self.joined.cmp(&other.joined))
    }
}

impl<S> Member<S> {
    /// The same for all members of one subscription and for no other.
    #[inline]
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.record).addr()
    }

    fn side_of(&self, record: &Record<S>) -> Ordering {
        self.record.side_of(record)
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

// Written by hand: derived ones would ask for `S: Clone` and `S: Default`.
impl<S> Clone for Members<S> {
    fn clone(&self) -> Self {
        Members {
            single: self.single.clone(),
            rest: self.rest.clone(),
        }
    }
}

impl<S> Clone for Single<S> {
    fn clone(&self) -> Self {
        match self {
            Single::Few(few) => Single::Few(few.clone()),
            Single::Many(many) => Single::Many(many.clone()),
        }
    }
}

impl<S> Clone for Rest<S> {
    fn clone(&self) -> Self {
        Rest {
            several: self.several.clone(),
            groups: self.groups.clone(),
        }
    }
}

impl<S> Default for Rest<S> {
    fn default() -> Self {
        Rest {
            several: Ordered::Empty,
            groups: Ordered::Empty,
        }
    }
}

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
