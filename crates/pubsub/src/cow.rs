//! Slices that several versions of the tree share: what a change makes of them.
//!
//! A slice of exact size in one allocation is the cheapest to read. Changing its length copies it,
//! which increments a reference count for each item; that, not the memory, is what a change costs,
//! and why slices are kept short.

use std::sync::Arc;

/// A copy of `items` with one more.
pub(crate) fn with_inserted<T: Clone>(items: &[T], at: usize, item: T) -> Arc<[T]> {
    let (before, after) = items.split_at(at);
    let before = before.iter().cloned();
    before
        .chain(std::iter::once(item))
        .chain(after.iter().cloned())
        .collect()
}

/// A copy of `items` with one less.
pub(crate) fn without<T: Clone>(items: &[T], at: usize) -> Arc<[T]> {
    let (before, after) = (&items[..at], &items[at + 1..]);
    before.iter().chain(after).cloned().collect()
}

/// A copy of both, one after the other.
pub(crate) fn concat<T: Clone>(a: &[T], b: &[T]) -> Arc<[T]> {
    a.iter().chain(b).cloned().collect()
}
