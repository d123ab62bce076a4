//! A persistent ordered list: a B+ tree that knows how many items it has.
//!
//! The members of a node are kept in it, in an order that `Ord`-like closures define. While there
//! are few (the usual case) it is one contiguous slice. With thousands at one node, a change still
//! copies a few dozen items only, and the member with index `i`, which a shard group needs, is
//! found in a few steps.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::trie::{with_inserted, without};

/// Most items of a leaf and most children of a branch.
const CHUNK: usize = 32;
/// What has fewer than this looks for a neighbour to join.
const SPARSE: usize = CHUNK / 4;

/// The list. Cloning it is cheap and shares everything.
pub(crate) enum Ordered<T> {
    Empty,
    Leaf(Arc<[T]>),
    Branch {
        /// All items below.
        len: u32,
        /// None of them is empty.
        children: Arc<[Ordered<T>]>,
    },
}

impl<T> Ordered<T> {
    pub(crate) const fn new() -> Self {
        Ordered::Empty
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Ordered::Empty => 0,
            Ordered::Leaf(items) => items.len(),
            Ordered::Branch { len, .. } => *len as usize,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Ordered::Empty)
    }

    /// The item with that index.
    #[inline]
    pub(crate) fn get(&self, mut index: usize) -> Option<&T> {
        let mut list = self;
        loop {
            match list {
                Ordered::Empty => return None,
                Ordered::Leaf(items) => return items.get(index),
                Ordered::Branch { children, .. } => {
                    list = children.iter().find(|child| {
                        let here = index < child.len();
                        if !here {
                            index -= child.len();
                        }
                        here
                    })?;
                }
            }
        }
    }

    /// Calls `visit` with each item, in order.
    #[inline]
    pub(crate) fn for_each<'a>(&'a self, visit: &mut impl FnMut(&'a T)) {
        match self {
            Ordered::Empty => {}
            Ordered::Leaf(items) => items.iter().for_each(visit),
            Ordered::Branch { children, .. } => Self::each_child(children, visit),
        }
    }

    fn each_child<'a>(children: &'a [Ordered<T>], visit: &mut impl FnMut(&'a T)) {
        for child in children {
            child.for_each(visit);
        }
    }

    fn first(&self) -> Option<&T> {
        match self {
            Ordered::Empty => None,
            Ordered::Leaf(items) => items.first(),
            Ordered::Branch { children, .. } => children.first()?.first(),
        }
    }

    /// How many direct parts it has.
    fn parts(&self) -> usize {
        match self {
            Ordered::Empty => 0,
            Ordered::Leaf(items) => items.len(),
            Ordered::Branch { children, .. } => children.len(),
        }
    }

    fn branch(children: Arc<[Ordered<T>]>) -> Self {
        let len = children.iter().map(|child| child.len() as u32).sum();
        Ordered::Branch { len, children }
    }
}

/// The child under which an item would be for which `side` says where other items are from it.
fn child_of<T>(children: &[Ordered<T>], side: &impl Fn(&T) -> Ordering) -> usize {
    children[1..].partition_point(|child| {
        let first = child.first();
        first.is_some_and(|first| side(first) != Ordering::Greater)
    })
}

impl<T: Clone> Ordered<T> {
    /// Puts `item` in its place; `side` tells where another item is, seen from it.
    pub(crate) fn insert(&mut self, item: T, side: &impl Fn(&T) -> Ordering) {
        if let Some(right) = self.insert_below(item, side) {
            let left = std::mem::replace(self, Ordered::Empty);
            *self = Ordered::branch(Arc::new([left, right]));
        }
    }

    /// Inserts; if that splits the list, the right part comes back.
    fn insert_below(&mut self, item: T, side: &impl Fn(&T) -> Ordering) -> Option<Self> {
        match self {
            Ordered::Empty => {
                *self = Ordered::Leaf(Arc::new([item]));
                None
            }
            Ordered::Leaf(items) => {
                let at = items.partition_point(|other| side(other) != Ordering::Greater);
                let (left, right) = split(with_inserted(items, at, item), at);
                *items = left;
                right.map(Ordered::Leaf)
            }
            Ordered::Branch { len, children } => {
                let at = child_of(children, side);
                let split_off = Arc::make_mut(children)[at].insert_below(item, side);
                *len += 1;
                let (left, right) = split(with_inserted(children, at + 1, split_off?), at + 1);
                let right = right.map(Ordered::branch);
                *self = Ordered::branch(left);
                right
            }
        }
    }

    /// The item that `side` calls equal, for changing it without moving it.
    pub(crate) fn get_mut(&mut self, side: &impl Fn(&T) -> Ordering) -> Option<&mut T> {
        match self {
            Ordered::Empty => None,
            Ordered::Leaf(items) => {
                let at = items.binary_search_by(side).ok()?;
                Some(&mut Arc::make_mut(items)[at])
            }
            Ordered::Branch { children, .. } => {
                let at = child_of(children, side);
                Arc::make_mut(children)[at].get_mut(side)
            }
        }
    }

    /// Takes out the item that `side` calls equal. Returns whether there was one.
    pub(crate) fn remove(&mut self, side: &impl Fn(&T) -> Ordering) -> bool {
        let removed = self.remove_below(side);
        while let Ordered::Branch { children, .. } = self
            && let [only] = &**children
        {
            *self = only.clone();
        }
        removed
    }

    fn remove_below(&mut self, side: &impl Fn(&T) -> Ordering) -> bool {
        match self {
            Ordered::Empty => false,
            Ordered::Leaf(items) => {
                let Ok(at) = items.binary_search_by(side) else {
                    return false;
                };
                *self = if items.len() == 1 {
                    Ordered::Empty
                } else {
                    Ordered::Leaf(without(items, at))
                };
                true
            }
            Ordered::Branch { len, children } => {
                let at = child_of(children, side);
                let child = &mut Arc::make_mut(children)[at];
                if !child.remove_below(side) {
                    return false;
                }
                *len -= 1;
                if child.parts() < SPARSE {
                    *children = tidied(children, at);
                }
                if children.is_empty() {
                    *self = Ordered::Empty;
                }
                true
            }
        }
    }
}

/// Cuts what has grown too large in two. `at` is where it grew: appending fills the left part
/// (members usually join at the end), anything else cuts in the middle.
fn split<T: Clone>(items: Arc<[T]>, at: usize) -> (Arc<[T]>, Option<Arc<[T]>>) {
    if items.len() <= CHUNK {
        return (items, None);
    }
    let middle = if at + 1 == items.len() {
        at
    } else {
        items.len() / 2
    };
    (items[..middle].into(), Some(items[middle..].into()))
}

/// `children` after the one at `at` became sparse: gone if empty, else joined with a neighbour if
/// both fit in one.
fn tidied<T: Clone>(children: &Arc<[Ordered<T>]>, at: usize) -> Arc<[Ordered<T>]> {
    if children[at].is_empty() {
        return without(children, at);
    }
    for left in [at.checked_sub(1), Some(at)].into_iter().flatten() {
        if let Some([a, b]) = children.get(left..left + 2)
            && let Some(joined) = joined(a, b)
        {
            let mut fewer = without(children, left + 1);
            Arc::make_mut(&mut fewer)[left] = joined;
            return fewer;
        }
    }
    Arc::clone(children)
}

fn joined<T: Clone>(a: &Ordered<T>, b: &Ordered<T>) -> Option<Ordered<T>> {
    if a.parts() + b.parts() > CHUNK {
        return None;
    }
    match (a, b) {
        (Ordered::Leaf(a), Ordered::Leaf(b)) => Some(Ordered::Leaf(concat(a, b))),
        (Ordered::Branch { children: a, .. }, Ordered::Branch { children: b, .. }) => {
            Some(Ordered::branch(concat(a, b)))
        }
        _ => None,
    }
}

fn concat<T: Clone>(a: &[T], b: &[T]) -> Arc<[T]> {
    a.iter().chain(b).cloned().collect()
}

// Written by hand: a derived one would ask for `T: Clone`.
impl<T> Clone for Ordered<T> {
    fn clone(&self) -> Self {
        match self {
            Ordered::Empty => Ordered::Empty,
            Ordered::Leaf(items) => Ordered::Leaf(Arc::clone(items)),
            Ordered::Branch { len, children } => Ordered::Branch {
                len: *len,
                children: Arc::clone(children),
            },
        }
    }
}
