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

    /// The current version, without touching a counter that threads share. It is for one publish or
    /// one change; whoever kept it longer would keep the whole version alive.
    #[inline]
    pub(crate) fn load(&self) -> Snapshot<T> {
        Snapshot(self.0.load())
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
