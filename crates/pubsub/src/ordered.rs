//! A persistent ordered list: a B+ tree that knows how many items it has.
//!
//! The members of a node are kept in it, in an order that closures define. A single one needs no
//! memory of its own, and a few are one contiguous slice, as it is at nearly every node. With
//! thousands at one node, a change still copies a few dozen items only, and the member with index
//! `i`, which a shard group needs, is found in a few steps.

use std::cmp::Ordering;
use std::sync::Arc;

/// Most items of a leaf and most children of a branch.
const CHUNK: usize = 16;
/// What has fewer than this looks for a neighbour to join.
const SPARSE: usize = CHUNK / 4;

/// The list. Cloning it is cheap and shares everything.
#[derive(Default)]
pub(crate) enum Ordered<T> {
    #[default]
    Empty,
    /// Only ever the whole list.
    One(T),
    Leaf(Arc<[T]>),
    Branch {
        /// All items below.
        len: u32,
        /// Leaves, or branches of one height; none of them is empty.
        children: Arc<[Ordered<T>]>,
    },
}

impl<T> Ordered<T> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Ordered::Empty => 0,
            Ordered::One(_) => 1,
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
                Ordered::One(item) => return (index == 0).then_some(item),
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
            Ordered::One(item) => visit(item),
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
            Ordered::One(item) => Some(item),
            Ordered::Leaf(items) => items.first(),
            Ordered::Branch { children, .. } => children.first()?.first(),
        }
    }

    /// How many direct parts it has.
    fn parts(&self) -> usize {
        match self {
            Ordered::Empty => 0,
            Ordered::One(_) => 1,
            Ordered::Leaf(items) => items.len(),
            Ordered::Branch { children, .. } => children.len(),
        }
    }

    fn branch(children: Arc<[Ordered<T>]>) -> Self {
        let len = children.iter().map(|child| child.len() as u32).sum();
        Ordered::Branch { len, children }
    }
}

/// The child under which the item belongs from which `side` sees the others.
fn child_of<T>(children: &[Ordered<T>], side: &impl Fn(&T) -> Ordering) -> usize {
    children[1..].partition_point(|child| {
        let first = child.first();
        first.is_some_and(|first| side(first) != Ordering::Greater)
    })
}

// `side` tells where another item is, seen from the one that is meant: `Less` is before it.
impl<T: Clone> Ordered<T> {
    /// Puts `item` in its place.
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
                *self = Ordered::One(item);
                None
            }
            Ordered::One(other) => {
                let pair = match side(other) {
                    Ordering::Greater => [item, other.clone()],
                    _ => [other.clone(), item],
                };
                *self = Ordered::Leaf(Arc::new(pair));
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
            Ordered::One(item) => side(item).is_eq().then_some(item),
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
        if let Ordered::Leaf(items) = self
            && let [only] = &**items
        {
            *self = Ordered::One(only.clone());
        }
        removed
    }

    fn remove_below(&mut self, side: &impl Fn(&T) -> Ordering) -> bool {
        match self {
            Ordered::Empty => false,
            Ordered::One(item) => {
                let found = side(item).is_eq();
                if found {
                    *self = Ordered::Empty;
                }
                found
            }
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

/// Cuts what has grown too large in two. `at` is where it grew: appending leaves the left part
/// full (members usually join at the end), anything else cuts in the middle.
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

// Slices of exact size in one allocation are the cheapest to read. A change of length copies one,
// which increments a reference count for each item: that is what a change costs, and why slices are
// short.

/// A copy of `items` with one more.
fn with_inserted<T: Clone>(items: &[T], at: usize, item: T) -> Arc<[T]> {
    let (before, after) = items.split_at(at);
    let before = before.iter().cloned();
    before
        .chain(std::iter::once(item))
        .chain(after.iter().cloned())
        .collect()
}

/// A copy of `items` with one less.
fn without<T: Clone>(items: &[T], at: usize) -> Arc<[T]> {
    let (before, after) = (&items[..at], &items[at + 1..]);
    before.iter().chain(after).cloned().collect()
}

/// A copy of both, one after the other.
fn concat<T: Clone>(a: &[T], b: &[T]) -> Arc<[T]> {
    a.iter().chain(b).cloned().collect()
}

impl<T: Clone> Clone for Ordered<T> {
    #[inline]
    fn clone(&self) -> Self {
        match self {
            Ordered::Empty => Ordered::Empty,
            Ordered::One(item) => Ordered::One(item.clone()),
            Ordered::Leaf(items) => Ordered::Leaf(Arc::clone(items)),
            Ordered::Branch { len, children } => Ordered::Branch {
                len: *len,
                children: Arc::clone(children),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    //! The list against a sorted `Vec`.

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Item(u32);

    fn items(list: &Ordered<Item>) -> Vec<u32> {
        let mut items = Vec::new();
        list.for_each(&mut |item| items.push(item.0));
        items
    }

    /// Every part has a fitting size, and all leaves are equally deep.
    fn check(list: &Ordered<Item>, top: bool) -> usize {
        match list {
            Ordered::Empty | Ordered::One(_) => {
                assert!(top, "only as the whole list");
                0
            }
            Ordered::Leaf(items) => {
                assert!((1 + usize::from(top)..=CHUNK).contains(&items.len()));
                0
            }
            Ordered::Branch { len, children } => {
                assert!((1 + usize::from(top)..=CHUNK).contains(&children.len()));
                let sum: usize = children.iter().map(Ordered::len).sum();
                assert_eq!(*len as usize, sum);
                let heights: Vec<usize> = children.iter().map(|c| check(c, false)).collect();
                assert!(heights.iter().all(|height| *height == heights[0]));
                heights[0] + 1
            }
        }
    }

    proptest! {
        #[test]
        fn list_is_a_sorted_vec(
            steps in proptest::collection::vec((any::<bool>(), 0..600_u32), 0..1200),
            ascending in 0..600_u32,
        ) {
            let mut list = Ordered::default();
            let mut model: Vec<u32> = Vec::new();
            // Joining in order is the usual case; the rest comes at random.
            let start = (0..ascending).map(|number| (true, number));
            for (add, number) in start.chain(steps) {
                let before = list.clone();
                let known = items(&before);
                let side = |other: &Item| other.0.cmp(&number);
                match (add, model.binary_search(&number)) {
                    (true, Err(at)) => {
                        model.insert(at, number);
                        list.insert(Item(number), &side);
                    }
                    (true, Ok(_)) => {
                        prop_assert_eq!(list.get_mut(&side), Some(&mut Item(number)));
                    }
                    (false, found) => {
                        prop_assert_eq!(list.get_mut(&side).is_some(), found.is_ok());
                        prop_assert_eq!(list.remove(&side), found.is_ok());
                        found.map(|at| model.remove(at)).ok();
                    }
                }
                prop_assert_eq!(items(&before), known, "an old version changed");
            }
            check(&list, true);
            prop_assert_eq!(items(&list), model.clone());
            prop_assert_eq!(list.len(), model.len());
            for (index, number) in model.iter().enumerate() {
                prop_assert_eq!(list.get(index), Some(&Item(*number)));
            }
            prop_assert_eq!(list.get(model.len()), None);
            for number in model {
                prop_assert!(list.remove(&|other: &Item| other.0.cmp(&number)));
                check(&list, true);
            }
            prop_assert!(list.is_empty());
        }
    }
}
