//! The cell that holds the current version of the tree.
//!
//! Readers take the version that is current and keep it as long as they look at it; the single
//! writer puts the next one in its place. This module is all that knows `arc-swap`, so that
//! exchanging it means exchanging this file.
//!
//! For the model checker a lock takes the place of `arc-swap`. What is checked then is the tree's
//! use of the cell; the cell itself is watched by the stress tests.

use std::ops::Deref;
use std::sync::Arc;

#[cfg(not(pubsub_loom))]
use arc_swap::ArcSwap as Place;
#[cfg(pubsub_loom)]
use model::Place;

/// Holds one version at a time.
pub(crate) struct Cell<T>(Place<T>);

impl<T> Cell<T> {
    pub(crate) fn new(first: T) -> Self {
        Cell(Place::from_pointee(first))
    }

    /// The current version, without touching a counter that threads share. It is for one publish or
    /// one change; whoever kept it longer would keep the whole version alive.
    #[inline]
    pub(crate) fn load(&self) -> impl Deref<Target = Arc<T>> + use<T> {
        self.0.load()
    }

    /// Makes `next` current and hands back what was. The caller drops it where it may take long.
    pub(crate) fn swap(&self, next: Arc<T>) -> Arc<T> {
        self.0.swap(next)
    }
}

#[cfg(pubsub_loom)]
mod model {
    //! `arc-swap`'s interface, as far as it is used, over a lock that loom knows.

    use std::sync::Arc;

    use loom::sync::Mutex;

    pub(super) struct Place<T>(Mutex<Arc<T>>);

    impl<T> Place<T> {
        pub(super) fn from_pointee(first: T) -> Self {
            Place(Mutex::new(Arc::new(first)))
        }

        pub(super) fn load(&self) -> Box<Arc<T>> {
            Box::new(Arc::clone(&self.0.lock().expect("no panics")))
        }

        pub(super) fn swap(&self, next: Arc<T>) -> Arc<T> {
            std::mem::replace(&mut self.0.lock().expect("no panics"), next)
        }
    }
}
