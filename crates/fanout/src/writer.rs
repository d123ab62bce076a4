//! The stage itself: its life, and the way of an item from a writer to a callback.

use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crossbeam_utils::CachePadded;
use thread_local::ThreadLocal;

use crate::callback::{Callback, Factory};
use crate::error::{Error, WriteError};
use crate::policy::Policy;
use crate::queue::{PushError, Queue};

/// Slots of the buffer for each worker, unless told otherwise.
const SLOTS_PER_WORKER: usize = 2;
/// The same with lanes. The writer waits when one lane is full, whatever room the others have; so
/// each needs enough for a run of items that happen to fall into it.
const SLOTS_PER_LANE: usize = 32;

/// Several workers that run a callback concurrently, behind a bounded buffer.
///
/// All methods take `&self`: share it by reference or in an `Arc`. Dropping it is
/// [`stop`](Self::stop).
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// use fanout::FanoutWriter;
///
/// let sum = Arc::new(AtomicU64::new(0));
/// let fanout = FanoutWriter::new(4, {
///     let sum = sum.clone();
///     // called once for each worker, so that each has state of its own
///     move |_worker| {
///         let sum = sum.clone();
///         let mut largest = 0;
///         move |item: u64| {
///             largest = largest.max(item);
///             sum.fetch_add(item, Relaxed);
///         }
///     }
/// })?;
/// fanout.start()?;
/// for item in 1..=100 {
///     fanout.write(item).expect("it has not been stopped");
/// }
/// fanout.stop(); // everything that was accepted is done now
/// assert_eq!(sum.load(Relaxed), 5050);
/// # Ok::<(), fanout::Error>(())
/// ```
pub struct FanoutWriter<T> {
    stage: Arc<Stage<T>>,
    /// What each writing thread needs for doing the work itself. Its own, so that no lock is taken.
    callers: ThreadLocal<RefCell<Caller<T>>>,
    caller_runs: bool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What writers and workers share.
struct Stage<T> {
    factory: Factory<T>,
    workers: usize,
    /// Of all queues together, if it was set.
    capacity: Option<usize>,
    key: Option<Key<T>>,
    /// Whether the order within a queue must be kept. A single worker keeps it by nature.
    ordered: bool,
    /// One for all workers, or a lane for each.
    queues: Box<[CachePadded<Queue<T>>]>,
    state: AtomicU8,
}

type Key<T> = Box<dyn Fn(&T) -> u64 + Send + Sync>;

/// The life of a stage, in `Stage::state`.
const NEW: u8 = 0;
const RUNNING: u8 = 1;
const STOPPED: u8 = 2;

/// A writing thread's own callback, and when to use it.
struct Caller<T> {
    callback: Callback<T>,
    policy: Policy,
}

/// Figures of a stage at one moment, from [`FanoutWriter::stats`].
///
/// ```
/// use fanout::{FanoutWriter, Stats};
///
/// let fanout = FanoutWriter::new(2, |_| |_: u32| {})?;
/// fanout.write(1).expect("before the start there is room for 4");
/// assert_eq!(fanout.stats(), Stats { workers: 2, queued: 1, panics: 0 });
/// # Ok::<(), fanout::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// How many workers the stage has.
    pub workers: usize,
    /// How many items wait in the buffer.
    pub queued: usize,
    /// How many callbacks have panicked since the stage was made.
    pub panics: u64,
}

thread_local! {
    /// The stage that this thread is a worker of, by address; 0 for all other threads.
    static WORKER_OF: Cell<usize> = const { Cell::new(0) };
}

impl<T: Send + 'static> FanoutWriter<T> {
    /// A stage with so many workers, not yet started.
    ///
    /// `factory` makes the callbacks: one for each worker, with its number, when the stage starts;
    /// one for each thread that writes, with the number `workers`, when it first does work itself;
    /// and a new one in place of each that has panicked.
    ///
    /// # Errors
    ///
    /// [`Error::NoWorkers`] if `workers` is 0.
    pub fn new<F, C>(workers: usize, factory: F) -> Result<FanoutWriter<T>, Error>
    where
        F: Fn(usize) -> C + Send + Sync + 'static,
        C: FnMut(T) + Send + 'static,
    {
        if workers == 0 {
            return Err(Error::NoWorkers);
        }
        let mut stage = Stage {
            factory: Factory::new(move |worker| Box::new(factory(worker))),
            workers,
            capacity: None,
            key: None,
            ordered: false,
            queues: Box::default(),
            state: AtomicU8::new(NEW),
        };
        stage.make_queues();
        Ok(FanoutWriter {
            stage: Arc::new(stage),
            callers: ThreadLocal::new(),
            caller_runs: true,
            threads: Mutex::new(Vec::new()),
        })
    }

    /// Room for so many waiting items, at least 1. Lanes share it evenly, rounded down, but each has
    /// room for at least one.
    ///
    /// Without this there is room for 2 items for each worker, and with lanes for 32 in each: a
    /// writer waits for room in one lane even if others are empty, so they need some for keys that
    /// come in a row. For callbacks that take about a microsecond 16 to 32 for each worker are
    /// better, since writer and workers then touch the buffer less often.
    ///
    /// # Panics
    ///
    /// If the stage has been started or written to.
    #[must_use]
    pub fn with_buffer_size(self, items: usize) -> FanoutWriter<T> {
        self.configure(|stage| stage.capacity = Some(items))
    }

    /// Keeps the order of items that have the same key.
    ///
    /// Each worker then has a lane of its own, and an item goes to the lane `key % workers`. Its
    /// callback begins when those of all earlier items of that lane have returned. Earlier means
    /// that their `write` had returned before this one was called, on whichever threads.
    ///
    /// # Panics
    ///
    /// If the stage has been started or written to.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use fanout::FanoutWriter;
    ///
    /// let seen = Arc::new(Mutex::new(Vec::new()));
    /// let fanout = FanoutWriter::new(4, {
    ///     let seen = seen.clone();
    ///     move |_| {
    ///         let seen = seen.clone();
    ///         move |item: (u64, u32)| seen.lock().unwrap().push(item)
    ///     }
    /// })?
    /// .with_lanes(|(account, _)| *account);
    /// fanout.start()?;
    /// for number in 0..100 {
    ///     for account in 0..10 {
    ///         fanout.write((account, number)).expect("it has not been stopped");
    ///     }
    /// }
    /// fanout.stop();
    ///
    /// let seen = seen.lock().unwrap();
    /// let of_account_7: Vec<u32> =
    ///     seen.iter().filter(|(account, _)| *account == 7).map(|(_, number)| *number).collect();
    /// assert_eq!(of_account_7, Vec::from_iter(0..100));
    /// # Ok::<(), fanout::Error>(())
    /// ```
    #[must_use]
    pub fn with_lanes(self, key: impl Fn(&T) -> u64 + Send + Sync + 'static) -> FanoutWriter<T> {
        self.configure(|stage| stage.key = Some(Box::new(key)))
    }

    /// Whether writers may run callbacks themselves; true unless told otherwise.
    ///
    /// With `false` callbacks run on workers only. A writer then never does more than put its item
    /// into the buffer, at the price of waking a worker when none is awake, and waits only when the
    /// buffer is full. The crate's front page says when to choose which.
    ///
    /// ```
    /// use std::thread;
    ///
    /// use fanout::FanoutWriter;
    ///
    /// let writer = thread::current().id();
    /// let fanout = FanoutWriter::new(1, move |_| {
    ///     move |_: u32| assert_ne!(thread::current().id(), writer)
    /// })?
    /// .with_caller_runs(false);
    /// fanout.start()?;
    /// fanout.write(1).expect("it has not been stopped");
    /// fanout.stop();
    /// assert_eq!(fanout.stats().panics, 0);
    /// # Ok::<(), fanout::Error>(())
    /// ```
    #[must_use]
    pub fn with_caller_runs(mut self, caller_runs: bool) -> FanoutWriter<T> {
        self.caller_runs = caller_runs;
        self
    }

    /// Starts the workers; their threads are called `fanout-0`, `fanout-1` and so on. Starting a
    /// stage that runs does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] if it has been stopped. [`Error::Spawn`] if a thread can't be started;
    /// the stage is stopped then.
    ///
    /// # Panics
    ///
    /// If the factory does; the stage is then as before.
    pub fn start(&self) -> Result<(), Error> {
        let mut threads = self.threads();
        match self.stage.state() {
            NEW => {}
            RUNNING => return Ok(()),
            _ => return Err(Error::Stopped),
        }
        // All callbacks first: if the factory panics, nothing has happened yet.
        let callbacks: Vec<_> = (0..self.stage.workers)
            .map(|worker| self.stage.factory.make(worker))
            .collect();
        for (worker, callback) in callbacks.into_iter().enumerate() {
            let stage = self.stage.clone();
            let spawned = thread::Builder::new()
                .name(format!("fanout-{worker}"))
                .spawn(move || {
                    WORKER_OF.set(stage.address());
                    stage.work(worker, callback);
                });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(source) => {
                    drop(threads);
                    self.stop();
                    return Err(Error::Spawn { worker, source });
                }
            }
        }
        // It fails if `stop` came meanwhile.
        match self
            .stage
            .state
            .compare_exchange(NEW, RUNNING, Ordering::Release, Ordering::Relaxed)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::Stopped),
        }
    }

    /// Has the item's callback run, on a worker or on this thread.
    ///
    /// Waits while the buffer is full, unless this thread may run the callback itself. `Ok` means
    /// that the callback has run or will run, whatever happens.
    ///
    /// Before [`start`](Self::start) items are accepted as far as there is room for them.
    ///
    /// # Errors
    ///
    /// The item comes back: with [`WriteError::Stopped`] after `stop`, also to a writer that was
    /// waiting, and with [`WriteError::NotStarted`] if the buffer is full before `start`.
    #[inline]
    pub fn write(&self, item: T) -> Result<(), WriteError<T>> {
        self.run_or_hand_out(item, WhenFull::Wait)
    }

    /// Like [`write`](Self::write), but gives the item back instead of waiting for room. (With
    /// [caller runs](Self::with_caller_runs) this thread may still run the callback.)
    ///
    /// # Errors
    ///
    /// [`WriteError::Full`] if there is no room, [`WriteError::Stopped`] after `stop`.
    ///
    /// # Examples
    ///
    /// ```
    /// use fanout::{FanoutWriter, WriteError};
    ///
    /// let fanout = FanoutWriter::new(1, |_| |_: char| {})?.with_buffer_size(2);
    /// assert_eq!(fanout.try_write('a'), Ok(()));
    /// assert_eq!(fanout.try_write('b'), Ok(()));
    /// assert_eq!(fanout.try_write('c'), Err(WriteError::Full('c'))); // nobody takes them yet
    /// # Ok::<(), fanout::Error>(())
    /// ```
    #[inline]
    pub fn try_write(&self, item: T) -> Result<(), WriteError<T>> {
        self.run_or_hand_out(item, WhenFull::GiveBack)
    }

    /// What the stage is doing.
    pub fn stats(&self) -> Stats {
        Stats {
            workers: self.stage.workers,
            queued: self.stage.queues.iter().map(|queue| queue.len()).sum(),
            panics: self.stage.factory.panics(),
        }
    }

    /// The short way: run the item here. All that it takes is inlined into the caller's code.
    #[inline]
    fn run_or_hand_out(&self, item: T, when_full: WhenFull) -> Result<(), WriteError<T>> {
        let stage = &*self.stage;
        let queue = stage.queue_of(&item);
        match self.caller() {
            Some(mut caller) if stage.is_for_writer(queue, &caller.policy) => {
                caller.run(item, &stage.factory);
                Ok(())
            }
            Some(mut caller) => self.hand_out(item, queue, Some(&mut caller), when_full),
            None => self.hand_out(item, queue, None, when_full),
        }
    }

    /// The long way: put the item into its queue.
    #[inline(never)]
    fn hand_out(
        &self,
        item: T,
        queue: &Queue<T>,
        caller: Option<&mut Caller<T>>,
        when_full: WhenFull,
    ) -> Result<(), WriteError<T>> {
        let stage = &*self.stage;
        let pushed = match (queue.try_push(item), caller) {
            (Ok(pushed), Some(caller)) => {
                caller.policy.handed_out(&pushed, queue.capacity());
                return Ok(());
            }
            (Ok(_), None) => return Ok(()),
            (Err(PushError::Closed(item)), _) => return Err(WriteError::Stopped(item)),
            (Err(PushError::Full(item)), Some(caller)) if !stage.ordered && stage.is_running() => {
                // better than waiting for the workers is to be one
                caller.policy.found_full();
                caller.run(item, &stage.factory);
                return Ok(());
            }
            (Err(PushError::Full(item)), caller) => match when_full {
                WhenFull::GiveBack => return Err(WriteError::Full(item)),
                WhenFull::Wait if stage.state() == NEW => return Err(WriteError::NotStarted(item)),
                WhenFull::Wait => (queue.push(item).map_err(WriteError::Stopped)?, caller),
            },
        };
        if let (pushed, Some(caller)) = pushed {
            caller.policy.handed_out(&pushed, queue.capacity());
        }
        Ok(())
    }

    /// This thread's means of doing the work itself. None if it may not, and within a callback,
    /// where they are in use.
    #[inline]
    fn caller(&self) -> Option<RefMut<'_, Caller<T>>> {
        if !self.caller_runs {
            return None;
        }
        let caller = self.callers.get_or_try(|| {
            let callback = self.stage.factory.try_make(self.stage.workers).ok_or(())?;
            Ok::<_, ()>(RefCell::new(Caller {
                callback,
                policy: Policy::new(),
            }))
        });
        caller.ok()?.try_borrow_mut().ok()
    }

    fn configure(mut self, change: impl FnOnce(&mut Stage<T>)) -> FanoutWriter<T> {
        let stage = Arc::get_mut(&mut self.stage).filter(|stage| stage.is_untouched());
        let stage = stage.expect("configure a fan-out stage before it is started or written to");
        change(stage);
        stage.make_queues();
        self
    }
}

impl<T> FanoutWriter<T> {
    /// Refuses further items, waits until everything accepted is done, and ends the workers.
    ///
    /// May be called at any time, from any thread, more than once and by several at once; each call
    /// returns when all is done. What was written to a stage that never started is done here, on
    /// this thread. Two things are not waited for: an item that a writer is running itself at that
    /// moment, which that writer finishes; and, when a worker's callback calls `stop`, the workers.
    pub fn stop(&self) {
        self.stage.state.store(STOPPED, Ordering::Release);
        self.stage.queues.iter().for_each(|queue| queue.close());
        if WORKER_OF.get() == self.stage.address() {
            return;
        }
        let mut threads = self.threads();
        for thread in threads.drain(..) {
            // A worker contains its callback's panics, and its own end leaves nothing undone.
            let _ = thread.join();
        }
        for (worker, queue) in self.stage.queues.iter().enumerate() {
            if queue.len() > 0
                && let Some(callback) = self.stage.factory.try_make(worker)
            {
                self.stage.work(worker, callback);
            }
        }
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a writer wants if there is no room.
#[derive(Clone, Copy)]
enum WhenFull {
    Wait,
    GiveBack,
}

impl<T> Caller<T> {
    #[inline]
    fn run(&mut self, item: T, factory: &Factory<T>) {
        let callback = &mut self.callback;
        self.policy.run(|| callback.run(item, factory));
    }
}

impl<T> Stage<T> {
    /// A worker's life: until its queue is closed and empty.
    fn work(&self, worker: usize, mut callback: Callback<T>) {
        let queue = &self.queues[worker % self.queues.len()];
        let mut next = queue.take(false);
        while let Some(item) = next {
            callback.run(item, &self.factory);
            next = queue.take(true);
        }
    }

    #[inline]
    fn queue_of(&self, item: &T) -> &Queue<T> {
        match &self.key {
            None => &self.queues[0],
            Some(key) => &self.queues[(key(item) % self.queues.len() as u64) as usize],
        }
    }

    /// Whether a writer does its next item, which belongs to this queue, itself.
    #[inline]
    fn is_for_writer(&self, queue: &Queue<T>, policy: &Policy) -> bool {
        let here = if self.ordered {
            // Only if no earlier item is left in its lane. The last lane is the writer's part of
            // the work while it hands out the others.
            (policy.prefers_here() || self.is_last(queue)) && queue.is_idle()
        } else {
            policy.prefers_here()
        };
        here && self.is_running()
    }

    fn is_last(&self, queue: &Queue<T>) -> bool {
        self.queues
            .last()
            .is_some_and(|last| ptr::eq(&**last, queue))
    }

    #[inline]
    fn is_running(&self) -> bool {
        self.state() == RUNNING
    }

    #[inline]
    fn state(&self) -> u8 {
        // Acquire: pairs with the Release stores in `start` and `stop`.
        self.state.load(Ordering::Acquire)
    }

    fn is_untouched(&self) -> bool {
        self.state() == NEW && self.queues.iter().all(|queue| queue.len() == 0)
    }

    fn make_queues(&mut self) {
        self.ordered = self.key.is_some() || self.workers == 1;
        let (lanes, slots) = match self.key {
            Some(_) => (self.workers, SLOTS_PER_LANE),
            None => (1, SLOTS_PER_WORKER),
        };
        let capacity = self.capacity.unwrap_or(self.workers.saturating_mul(slots));
        let capacity = (capacity / lanes).max(1);
        self.queues = (0..lanes)
            .map(|_| CachePadded::new(Queue::new(capacity)))
            .collect();
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

impl<T> fmt::Debug for FanoutWriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanoutWriter")
            .field("workers", &self.stage.workers)
            .field("lanes", &self.stage.key.is_some())
            .field("caller_runs", &self.caller_runs)
            .finish_non_exhaustive()
    }
}

impl<T> Drop for FanoutWriter<T> {
    fn drop(&mut self) {
        self.stop();
    }
}
