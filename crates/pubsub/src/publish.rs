//! Publishing one event.
//!
//! One walk over one version of the tree: at each node that the event passes, its members are
//! delivered to on the spot; nothing is collected first. If a callback panics, the walk
//! starts again on the same version and skips as many deliveries as were made, which makes a panic
//! dear and everything else free.

use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use smallvec::SmallVec;

use crate::Event;
use crate::interest::Reach;
use crate::members::{Group, Member};
use crate::node::{Hashing, Node};
use crate::ordered::Ordered;
use crate::random::Random;
use crate::seen::Seen;
use crate::tree::Shared;

/// What became of a publish.
///
/// ```
/// use pubsub::{Event, Interest, Path, PubSub};
///
/// struct Tick;
/// impl Event<u32> for Tick {
///     type Key<'a> = u32;
///     fn key(&self, _depth: usize) -> Option<u32> {
///         None
///     }
/// }
///
/// let tree = PubSub::<u32, bool>::new();
/// let _good = tree.subscribe(true, Interest::new([Path::root()]));
/// let _bad = tree.subscribe(false, Interest::new([Path::root()]));
/// let published = tree.publish(&Tick, |&good| assert!(good));
/// assert_eq!((published.delivered, published.panicked), (1, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Calls of the callback that returned.
    pub delivered: usize,
    /// Calls of the callback that panicked.
    pub panicked: usize,
}

pub(crate) fn publish<K: Hash + Eq, S, E: Event<K>>(
    shared: &Shared<K, S>,
    event: &E,
    mut deliver: impl FnMut(&S),
) -> Published {
    let version = shared.load();
    let mut draw = Draw::new(&shared.random);
    let mut calls = Calls::new(|subscriber: &S| deliver(subscriber));
    calls.run(|calls| {
        let mut seen = Seen::new();
        walk(&version.root, &shared.hashing, event, &mut |node| {
            let members = &node.members;
            members.single.for_each(&mut |record| {
                calls.call(|deliver| deliver(&record.subscriber));
            });
            let Some(rest) = &members.rest else { return };
            rest.several.for_each(&mut |member| {
                once(member, &mut seen, calls);
            });
            rest.groups.for_each(&mut |group| {
                once(group.pick(event, &mut draw), &mut seen, calls);
            });
        });
    })
}

/// Delivers unless another path of the same subscription did.
#[inline]
fn once<S>(member: &Member<S>, seen: &mut Seen, calls: &mut Calls<impl FnMut(&S)>) {
    if member.reach == Reach::Overlapping && !seen.insert(member.address()) {
        return;
    }
    calls.call(|deliver| deliver(&member.record.subscriber));
}

/// Calls `visit` with each node that the event passes, the root first.
#[inline]
fn walk<'t, K, S, E: Event<K>>(
    root: &'t Node<K, S>,
    hashing: &Hashing,
    event: &E,
    visit: &mut impl FnMut(&'t Node<K, S>),
) {
    // Where the event's own key and "any key" both go on, one of them waits here.
    let mut pending: SmallVec<[(&Node<K, S>, usize); 4]> = SmallVec::new();
    let (mut node, mut depth) = (root, 0);
    loop {
        visit(node);
        let ways = match node.is_end() {
            true => None,
            false => event.key(depth).map(|key| node.ways(&key, hashing)),
        };
        (node, depth) = match ways {
            Some((Some(any), Some(own))) => {
                pending.push((any, depth + 1));
                (own, depth + 1)
            }
            Some((Some(next), None) | (None, Some(next))) => (next, depth + 1),
            Some((None, None)) | None => match pending.pop() {
                Some(next) => next,
                None => return,
            },
        };
    }
}

/// What the members of shard groups are picked by: one draw per event, made when first needed, so
/// that groups with the same members at different nodes pick the same one.
pub(crate) struct Draw<'a> {
    source: &'a Random,
    drawn: Option<u64>,
}

impl<'a> Draw<'a> {
    pub(crate) fn new(source: &'a Random) -> Self {
        Draw {
            source,
            drawn: None,
        }
    }

    #[inline]
    fn random(&mut self) -> u64 {
        *self.drawn.get_or_insert_with(|| self.source.next())
    }
}

impl<S> Group<S> {
    /// The member that gets `event`.
    #[inline]
    fn pick<K>(&self, event: &impl Event<K>, draw: &mut Draw<'_>) -> &Member<S> {
        self.at(|named| {
            let hash = if named { event.shard_hash() } else { None };
            hash.unwrap_or_else(|| draw.random())
        })
    }

    /// The member with index `number(named) mod n`, where `named` tells whether any has a name. A
    /// single one is picked without asking.
    #[inline]
    pub(crate) fn at(&self, number: impl FnOnce(bool) -> u64) -> &Member<S> {
        if let Ordered::One(member) = &self.members {
            return member;
        }
        let index = number(self.named > 0) % self.members.len() as u64;
        let member = self.members.get(index as usize);
        member.expect("groups are never empty, and the index is below their length")
    }
}

/// Calls the user's callback and survives its panics.
pub(crate) struct Calls<F> {
    deliver: F,
    /// Calls made in this walk, including those left out.
    made: usize,
    /// Calls that an earlier walk has made.
    skip: usize,
    /// Whether the callback runs, so that its panics can be told from others.
    inside: bool,
}

impl<F> Calls<F> {
    pub(crate) fn new(deliver: F) -> Self {
        Calls {
            deliver,
            made: 0,
            skip: 0,
            inside: false,
        }
    }

    /// One delivery.
    #[inline]
    pub(crate) fn call(&mut self, with: impl FnOnce(&mut F)) {
        if self.made >= self.skip {
            self.inside = true;
            with(&mut self.deliver);
            self.inside = false;
        }
        self.made += 1;
    }

    /// Runs `walk`, and again from where it got to if a callback panics.
    ///
    /// A walk that is run again must make the same calls in the same order.
    #[inline]
    pub(crate) fn run(&mut self, mut walk: impl FnMut(&mut Self)) -> Published {
        let mut panicked = 0;
        // Unwind safe: the counters are right at every call, and what the callback left behind is
        // the user's.
        while let Err(payload) = catch_unwind(AssertUnwindSafe(|| walk(self))) {
            if !self.inside {
                resume_unwind(payload);
            }
            // A payload may panic when dropped; the second one is not worth a third try.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
            panicked += 1;
            self.inside = false;
            self.skip = self.made + 1;
            self.made = 0;
        }
        Published {
            delivered: self.made - panicked,
            panicked,
        }
    }
}
