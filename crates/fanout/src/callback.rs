//! A callback and the factory that it came from: runs items, contains panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is done with an item.
pub(crate) type Work<T> = Box<dyn FnMut(T) + Send>;

/// Makes callbacks and counts their panics.
pub(crate) struct Factory<T> {
    make: Box<dyn Fn(usize) -> Work<T> + Send + Sync>,
    panics: AtomicU64,
}

impl<T> Factory<T> {
    pub(crate) fn new(make: impl Fn(usize) -> Work<T> + Send + Sync + 'static) -> Factory<T> {
        Factory {
            make: Box::new(make),
            panics: AtomicU64::new(0),
        }
    }

    /// The callback of the worker with this number.
    pub(crate) fn make(&self, worker: usize) -> Callback<T> {
        Callback {
            work: (self.make)(worker),
            worker,
        }
    }

    /// Like [`make`](Self::make), for where a panicking factory must not do harm.
    pub(crate) fn try_make(&self, worker: usize) -> Option<Callback<T>> {
        // Unwind safety: a factory is `Fn`, and what it was making is gone.
        catch_unwind(AssertUnwindSafe(|| self.make(worker)))
            .map_err(|_| self.count_panic())
            .ok()
    }

    fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// How many panics there were.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

/// One worker's callback.
pub(crate) struct Callback<T> {
    work: Work<T>,
    worker: usize,
}

impl<T> Callback<T> {
    /// Does the work. After a panic the callback is made anew, since its state may be half
    /// changed; should the factory panic as well, the old one stays.
    #[inline]
    pub(crate) fn run(&mut self, item: T, factory: &Factory<T>) {
        // Unwind safety: `work` is replaced below if it unwinds.
        if catch_unwind(AssertUnwindSafe(|| (self.work)(item))).is_err() {
            self.after_panic(factory);
        }
    }

    #[cold]
    fn after_panic(&mut self, factory: &Factory<T>) {
        factory.count_panic();
        // Unwind safety: a factory is `Fn`, and `work` is replaced as a whole. Its drop is in here,
        // too, since what panicked once may do it again.
        let _ = catch_unwind(AssertUnwindSafe(|| self.work = (factory.make)(self.worker)));
    }
}
