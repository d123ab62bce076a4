//! The cell that holds the current version of the tree.
//!
//! Readers take the version that is current and keep it as long as they look at it; the single
//! writer puts the next one in its place. This module is all that knows `arc-swap`, so that
//! exchanging it means exchanging this file.

use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

/// Holds one version at a time.
pub(crate) struct Cell<T>(ArcSwap<T>);

impl<T> Cell<T> {
    pub(crate) fn new(first: T) -> Self {
        Cell(ArcSwap::from_pointee(first))
    }

    /// The current version, without touching a shared counter. For one publish: it must not
    /// outlive the call.
    #[inline]
    pub(crate) fn load(&self) -> Snapshot<T> {
        Snapshot(self.0.load())
    }

    /// The current version for as long as one likes, at the price of a shared counter.
    pub(crate) fn load_full(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Makes `next` current and hands back what was. The caller drops it where it may take long.
    pub(crate) fn swap(&self, next: Arc<T>) -> Arc<T> {
        self.0.swap(next)
    }
}

/// A version while it is being looked at.
pub(crate) struct Snapshot<T>(Guard<Arc<T>>);

impl<T> Deref for Snapshot<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}
