//! A lossy ring bounded by weight and bytes instead of by a number of values.
//!
//! A value may stand for many things (a run of envelopes, say), so that room and losses are counted
//! in what the values weigh. That rules out slots of a fixed number: this ring is a queue behind a
//! lock. The lock is held for a few moves and never while foreign code runs: values are weighed
//! before, evicted values are dropped and readers are woken after. It guards the queue, the
//! reader's waker and the counters together, so that there is no wake-up handshake to get wrong.
//!
//! The counters are atomics that only the holder of the lock changes. Everybody else may read them
//! at any time without the lock; `Relaxed` is enough, since they order nothing.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::mem;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use crate::error::{Error, TryNextError};
use crate::missed::OnMissed;
use crate::primitives::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard};
use crate::wait::block_on;

/// How many values are moved in or out under one lock by writers: enough for what is common, small
/// enough for the stack.
const CHUNK: usize = 16;

/// Room for so many values is kept by a ring that has been emptied after it held more: a burst is
/// no reason to hold memory for ever.
const KEPT: usize = 1024;

/// What a value takes up in a [`Weighted`] ring.
///
/// Both are asked once, before the value is stored.
///
/// # Examples
///
/// ```
/// struct Lines(String);
///
/// impl diode::Weigh for Lines {
///     fn weight(&self) -> usize {
///         self.0.lines().count()
///     }
///     fn bytes(&self) -> usize {
///         self.0.len()
///     }
/// }
/// # use diode::Weigh;
/// assert_eq!(Lines("a\nb".to_owned()).weight(), 2);
/// ```
pub trait Weigh {
    /// How many things the value stands for. Capacity and losses are counted in this unit.
    fn weight(&self) -> usize;

    /// How much memory the value holds on to, in bytes.
    fn bytes(&self) -> usize;
}

/// The room of a [`Weighted`] ring. The oldest values are evicted until both limits hold.
///
/// # Examples
///
/// ```
/// use diode::Limits;
///
/// let limits = Limits { weight: 10_000, bytes: 64 << 20 };
/// # assert_eq!(limits.weight, 10_000);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Total weight, at least 1. It also bounds the number of values, so that values of weight 0
    /// are bounded too.
    pub weight: usize,
    /// Total bytes, at least 1.
    pub bytes: usize,
}

/// Bytes that several [`Weighted`] rings may hold together; clones are the same budget.
///
/// A ring that stores a value while the budget is used up evicts its own oldest values until the
/// budget holds again, but keeps the newest one. So all rings together exceed it by one value each
/// at most.
///
/// # Examples
///
/// ```
/// use diode::{Budget, Limits, Weigh, Weighted};
/// # struct Kilobyte;
/// # impl Weigh for Kilobyte {
/// #     fn weight(&self) -> usize { 1 }
/// #     fn bytes(&self) -> usize { 1024 }
/// # }
///
/// let budget = Budget::new(10 * 1024);
/// let limits = Limits { weight: 100, bytes: 1 << 20 };
/// let (first, _kept) = Weighted::new(limits)?.within(&budget).split();
/// let (second, _reader) = Weighted::new(limits)?.within(&budget).split();
/// first.set_all((0..8).map(|_| Kilobyte));
/// second.set_all((0..8).map(|_| Kilobyte));
/// assert_eq!((first.queued_bytes(), second.queued_bytes()), (8 * 1024, 2 * 1024));
/// assert_eq!(budget.used(), budget.bytes());
/// # Ok::<(), diode::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Budget(Arc<BudgetInner>);

#[derive(Debug)]
struct BudgetInner {
    bytes: usize,
    /// Relaxed: it orders nothing, and a ring that sees an old figure evicts a little more or less.
    used: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(BudgetInner {
            bytes,
            used: AtomicUsize::new(0),
        }))
    }

    /// What the rings may hold together.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// What they hold now.
    pub fn used(&self) -> usize {
        self.0.used.load(Relaxed)
    }

    fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.0.bytes.saturating_sub(self.used())
    }

    fn take(&self, bytes: usize) {
        self.0.used.fetch_add(bytes, Relaxed);
    }

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Relaxed);
    }
}

/// Builds a ring that is bounded by weight and bytes, for any number of writers and one reader.
///
/// The newest value is always kept, even if it exceeds a limit all alone.
///
/// # Examples
///
/// ```
/// use diode::{Limits, Weigh, Weighted};
///
/// struct Run(usize);
/// impl Weigh for Run {
///     fn weight(&self) -> usize {
///         self.0
///     }
///     fn bytes(&self) -> usize {
///         self.0 * 300
///     }
/// }
///
/// let (writer, mut reader) = Weighted::new(Limits { weight: 100, bytes: 1 << 20 })?.split();
/// writer.set(Run(60));
/// writer.set(Run(60)); // no room for both: the older one goes
/// assert_eq!(reader.try_next().map(|run| run.0), Ok(60));
/// assert_eq!(reader.missed(), 60);
/// # Ok::<(), diode::Error>(())
/// ```
pub struct Weighted<T> {
    limits: Limits,
    budget: Option<Budget>,
    on_missed: OnMissed,
    values: PhantomData<fn(T) -> T>,
}

impl<T: Weigh> Weighted<T> {
    /// A ring with room for `limits`. Memory is allocated as it fills; much of it is given back when
    /// the ring has been emptied, little is kept.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroCapacity`] if one of the limits is 0.
    pub fn new(limits: Limits) -> Result<Self, Error> {
        if limits.weight == 0 || limits.bytes == 0 {
            return Err(Error::ZeroCapacity);
        }
        Ok(Self {
            limits,
            budget: None,
            on_missed: OnMissed::none(),
            values: PhantomData,
        })
    }

    /// Calls `callback` with the weight that was missed since its last call.
    ///
    /// It runs on the reader's side, inside the reader's methods and before they take a value. A
    /// panic in it reaches the caller of that method and costs no value.
    #[must_use]
    pub fn on_missed(mut self, callback: impl FnMut(u64) + Send + 'static) -> Self {
        self.on_missed = OnMissed::new(callback);
        self
    }

    /// Counts what is stored towards `budget`, too.
    #[must_use]
    pub fn within(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// The two ends of the ring.
    pub fn split(self) -> (Writer<T>, Reader<T>) {
        let shared = Arc::new(Shared {
            limits: self.limits,
            budget: self.budget,
            counters: Counters {
                values: AtomicUsize::new(0),
                weight: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                missed: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                closed: AtomicBool::new(false),
            },
            writers: AtomicUsize::new(1),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                waker: None,
            }),
        });
        let writer = Writer {
            shared: Arc::clone(&shared),
        };
        let reader = Reader {
            shared,
            on_missed: self.on_missed,
        };
        (writer, reader)
    }
}

impl<T> fmt::Debug for Weighted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weighted")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

struct Shared<T> {
    limits: Limits,
    budget: Option<Budget>,
    counters: Counters,
    writers: AtomicUsize,
    state: Mutex<State<T>>,
}

struct State<T> {
    queue: VecDeque<Entry<T>>,
    /// Of the reader that found nothing. Whoever takes it out wakes it.
    waker: Option<Waker>,
}

struct Entry<T> {
    value: T,
    weight: usize,
    bytes: usize,
}

impl<T: Weigh> Entry<T> {
    fn new(value: T) -> Self {
        Self {
            weight: value.weight(),
            bytes: value.bytes(),
            value,
        }
    }
}

/// All but `refused` are changed by the holder of the lock only, hence with loads and stores.
struct Counters {
    values: AtomicUsize,
    weight: AtomicUsize,
    bytes: AtomicUsize,
    /// Weight that was evicted, or was left when the reader went away. Wraps, as `refused` does: a
    /// count of absurd weights must not panic.
    missed: AtomicU64,
    /// Weight that was never stored. Writers add to it without the lock.
    refused: AtomicU64,
    closed: AtomicBool,
}

impl<T> Shared<T> {
    fn lock(&self) -> Locked<'_, T> {
        Locked {
            limits: &self.limits,
            budget: self.budget.as_ref(),
            counters: &self.counters,
            // No foreign code runs under the lock, so that no panic leaves anything half done.
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn close(&self) {
        let waker = {
            let mut locked = self.lock();
            locked.counters.closed.store(true, Relaxed);
            locked.state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_closed(&self) -> bool {
        self.counters.closed.load(Relaxed)
    }

    fn missed(&self) -> u64 {
        let Counters {
            missed, refused, ..
        } = &self.counters;
        missed.load(Relaxed).wrapping_add(refused.load(Relaxed))
    }
}

/// The ring while the lock is held. Nothing in here weighs, clones, wakes or drops.
struct Locked<'a, T> {
    limits: &'a Limits,
    budget: Option<&'a Budget>,
    counters: &'a Counters,
    state: MutexGuard<'a, State<T>>,
}

impl<T> Locked<'_, T> {
    fn is_closed(&self) -> bool {
        self.counters.closed.load(Relaxed)
    }

    /// Moves the oldest values out until `entry` fits or is alone; false if `evicted` filled up first.
    fn make_room<const N: usize>(
        &mut self,
        entry: &Entry<T>,
        evicted: &mut Chunk<Entry<T>, N>,
    ) -> bool {
        while !self.fits(entry) {
            if evicted.is_full() {
                return false;
            }
            let Some(oldest) = self.pop() else { break };
            let missed = &self.counters.missed;
            missed.store(
                missed.load(Relaxed).wrapping_add(oldest.weight as u64),
                Relaxed,
            );
            evicted.push(oldest);
        }
        true
    }

    fn fits(&self, entry: &Entry<T>) -> bool {
        let within = |limit: usize, used: &AtomicUsize, more: usize| {
            let sum = used.load(Relaxed).checked_add(more);
            sum.is_some_and(|sum| sum <= limit)
        };
        let Counters { weight, bytes, .. } = self.counters;
        within(self.limits.weight, weight, entry.weight)
            && within(self.limits.bytes, bytes, entry.bytes)
            && self.state.queue.len() < self.limits.weight
            && self
                .budget
                .is_none_or(|budget| budget.has_room(entry.bytes))
    }

    /// Neither sum can overflow: they are within the limits, or those of this entry alone.
    fn push(&mut self, entry: Entry<T>) {
        let Counters { weight, bytes, .. } = self.counters;
        weight.store(weight.load(Relaxed) + entry.weight, Relaxed);
        bytes.store(bytes.load(Relaxed) + entry.bytes, Relaxed);
        if let Some(budget) = self.budget {
            budget.take(entry.bytes);
        }
        self.state.queue.push_back(entry);
        self.publish_len();
    }

    fn pop(&mut self) -> Option<Entry<T>> {
        let entry = self.state.queue.pop_front()?;
        let Counters { weight, bytes, .. } = self.counters;
        weight.store(weight.load(Relaxed) - entry.weight, Relaxed);
        bytes.store(bytes.load(Relaxed) - entry.bytes, Relaxed);
        if let Some(budget) = self.budget {
            budget.give_back(entry.bytes);
        }
        if self.state.queue.is_empty() && self.state.queue.capacity() > KEPT {
            self.state.queue.shrink_to(KEPT);
        }
        self.publish_len();
        Some(entry)
    }

    fn publish_len(&self) {
        let len = self.state.queue.len();
        self.counters.values.store(len, Relaxed);
    }

    /// Values without weight count as if they had one here, as they do in the limits of the ring:
    /// otherwise nobody knew how many there may be.
    fn take_into(&mut self, values: &mut Vec<T>, max: usize) -> usize {
        let (mut taken, mut weight) = (0, 0);
        // A vector that is full is not grown under the lock; the rest is for the next call.
        while values.len() < values.capacity() || taken == 0 {
            match self.state.queue.front() {
                Some(_) if taken == 0 => {}
                Some(oldest) if taken < max && oldest.weight <= max - weight => {}
                _ => break,
            }
            let Some(oldest) = self.pop() else { break };
            taken += 1;
            weight = max.min(weight.saturating_add(oldest.weight));
            values.push(oldest.value);
        }
        taken
    }
}

/// A handful of values on the stack, first in, first out.
struct Chunk<E, const N: usize> {
    entries: [Option<E>; N],
    start: usize,
    end: usize,
}

impl<E, const N: usize> Chunk<E, N> {
    const fn new() -> Self {
        Self {
            entries: [const { None }; N],
            start: 0,
            end: 0,
        }
    }

    const fn is_full(&self) -> bool {
        self.end == N
    }

    fn push(&mut self, entry: E) {
        self.entries[self.end] = Some(entry);
        self.end += 1;
    }

    fn front(&self) -> Option<&E> {
        self.entries.get(self.start)?.as_ref()
    }

    fn pop(&mut self) -> Option<E> {
        let entry = self.entries.get_mut(self.start)?.take()?;
        self.start += 1;
        Some(entry)
    }
}

/// Values on their way in. What is not stored in the end, be it that the ring is closed or that the
/// drop of an evicted value panicked, counts as missed.
struct Incoming<'a, T, const N: usize> {
    shared: &'a Shared<T>,
    entries: Chunk<Entry<T>, N>,
}

impl<T, const N: usize> Incoming<'_, T, N> {
    /// Stores all of it in order, under one lock unless that evicts more than a chunk.
    fn store(&mut self, wake: &mut WakeOnDrop) {
        while self.entries.front().is_some() && !self.shared.is_closed() {
            let mut evicted = Chunk::<_, CHUNK>::new();
            let mut locked = self.shared.lock();
            if locked.is_closed() {
                break;
            }
            while let Some(entry) = self.entries.front()
                && locked.make_room(entry, &mut evicted)
                && let Some(entry) = self.entries.pop()
            {
                locked.push(entry);
            }
            let waker = locked.state.waker.take();
            drop(locked);
            wake.set(waker);
        }
    }
}

impl<T, const N: usize> Drop for Incoming<'_, T, N> {
    fn drop(&mut self) {
        while let Some(entry) = self.entries.pop() {
            let refused = &self.shared.counters.refused;
            refused.fetch_add(entry.weight as u64, Relaxed);
        }
    }
}

/// Wakes the reader at the end of a call, once, and even if a value's drop panics.
struct WakeOnDrop(Option<Waker>);

impl WakeOnDrop {
    fn set(&mut self, waker: Option<Waker>) {
        if waker.is_some() {
            self.0 = waker;
        }
    }
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        if let Some(waker) = self.0.take() {
            waker.wake();
        }
    }
}

/// A writing end of a [`Weighted`] ring. Clone it for more writers; the last one to go closes the ring.
///
/// # Examples
///
/// ```
/// # use diode::{Limits, Weigh, Weighted};
/// # struct One(u32);
/// # impl Weigh for One {
/// #     fn weight(&self) -> usize { 1 }
/// #     fn bytes(&self) -> usize { 4 }
/// # }
/// let (writer, mut reader) = Weighted::new(Limits { weight: 10, bytes: 1024 })?.split();
/// let other = writer.clone();
/// std::thread::spawn(move || other.set_all((0..5).map(One))).join().unwrap();
/// assert_eq!((writer.queued_weight(), writer.queued_bytes()), (5, 20));
/// # assert_eq!(reader.next().map(|one| one.0), Some(0));
/// # Ok::<(), diode::Error>(())
/// ```
pub struct Writer<T> {
    shared: Arc<Shared<T>>,
}

impl<T: Weigh> Writer<T> {
    /// Stores `value` as the newest and evicts the oldest values until the limits hold.
    ///
    /// Never fails, and waits for nothing but the short lock. On a closed ring the value is dropped
    /// and counted as missed.
    pub fn set(&self, value: T) {
        let mut wake = WakeOnDrop(None);
        let mut entries = Chunk::<_, 1>::new();
        entries.push(Entry::new(value));
        let shared = &*self.shared;
        Incoming { shared, entries }.store(&mut wake);
    }

    /// As [`set`](Self::set), but a closed ring gives the value back and counts nothing.
    ///
    /// # Errors
    ///
    /// The value, if the ring is closed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use diode::{Limits, Weigh, Weighted};
    /// # #[derive(Debug, PartialEq)]
    /// # struct One(u32);
    /// # impl Weigh for One {
    /// #     fn weight(&self) -> usize { 1 }
    /// #     fn bytes(&self) -> usize { 4 }
    /// # }
    /// let (writer, mut reader) = Weighted::new(Limits { weight: 10, bytes: 1024 })?.split();
    /// assert_eq!(writer.try_set(One(1)), Ok(()));
    /// reader.close();
    /// assert_eq!(writer.try_set(One(2)), Err(One(2)));
    /// assert_eq!((reader.next(), reader.next()), (Some(One(1)), None));
    /// assert_eq!(writer.missed(), 0);
    /// # Ok::<(), diode::Error>(())
    /// ```
    pub fn try_set(&self, value: T) -> Result<(), T> {
        let mut wake = WakeOnDrop(None);
        let mut entries = Chunk::<_, 1>::new();
        entries.push(Entry::new(value));
        let shared = &*self.shared;
        let mut incoming = Incoming { shared, entries };
        incoming.store(&mut wake);
        match incoming.entries.pop() {
            Some(refused) => Err(refused.value),
            None => Ok(()),
        }
    }

    /// Stores `values` in order, with one lock for up to 16 of them and at most one wake in all.
    ///
    /// The iterator runs without the lock.
    pub fn set_all(&self, values: impl IntoIterator<Item = T>) {
        let mut wake = WakeOnDrop(None);
        let mut values = values.into_iter().fuse();
        loop {
            let mut incoming = Incoming {
                shared: &*self.shared,
                entries: Chunk::<_, CHUNK>::new(),
            };
            while !incoming.entries.is_full()
                && let Some(value) = values.next()
            {
                incoming.entries.push(Entry::new(value));
            }
            if incoming.entries.front().is_none() {
                return;
            }
            incoming.store(&mut wake);
        }
    }
}

impl<T> Writer<T> {
    /// Closes the ring: the reader gets what is stored and then the end.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Whether one of the two sides closed the ring.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Total weight of the stored values, read without the lock.
    pub fn queued_weight(&self) -> usize {
        self.shared.counters.weight.load(Relaxed)
    }

    /// Total bytes of the stored values, read without the lock.
    pub fn queued_bytes(&self) -> usize {
        self.shared.counters.bytes.load(Relaxed)
    }

    /// Total weight that was set and that the reader will not get, read without the lock: evicted,
    /// set on a closed ring, or left behind by a reader that is gone.
    pub fn missed(&self) -> u64 {
        self.shared.missed()
    }
}

impl<T> Clone for Writer<T> {
    fn clone(&self) -> Self {
        // Relaxed: the count can't reach 0 in between, since `self` is one of those counted.
        self.shared.writers.fetch_add(1, Relaxed);
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        // Relaxed: what writers stored is handed over by the lock, which `close` takes too.
        if self.shared.writers.fetch_sub(1, Relaxed) == 1 {
            self.shared.close();
        }
    }
}

impl<T> fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(&self.shared, f, "Writer")
    }
}

/// The reading end of a [`Weighted`] ring. Dropping it closes the ring, and what was left counts as
/// missed.
///
/// # Examples
///
/// ```
/// # use diode::{Limits, Weigh, Weighted};
/// # struct One(u32);
/// # impl Weigh for One {
/// #     fn weight(&self) -> usize { 1 }
/// #     fn bytes(&self) -> usize { 4 }
/// # }
/// let (writer, mut reader) = Weighted::new(Limits { weight: 10, bytes: 1024 })?.split();
/// writer.set_all((0..5).map(One));
/// drop(writer);
///
/// let mut batch = Vec::new();
/// assert_eq!(reader.take_into(&mut batch, 3), 3);
/// assert_eq!(reader.next().map(|one| one.0), Some(3));
/// assert!(!reader.is_empty());
/// assert_eq!(reader.next().map(|one| one.0), Some(4));
/// assert!(reader.next().is_none());
/// # Ok::<(), diode::Error>(())
/// ```
pub struct Reader<T> {
    shared: Arc<Shared<T>>,
    on_missed: OnMissed,
}

impl<T> Reader<T> {
    /// The oldest value, without waiting.
    ///
    /// # Errors
    ///
    /// [`TryNextError::Empty`] if nothing is stored, [`TryNextError::Closed`] if nothing ever will be.
    pub fn try_next(&mut self) -> Result<T, TryNextError> {
        self.report_missed();
        let mut locked = self.shared.lock();
        match locked.pop() {
            Some(oldest) => Ok(oldest.value),
            None if locked.is_closed() => Err(TryNextError::Closed),
            None => Err(TryNextError::Empty),
        }
    }

    /// The oldest value; waits while there is none, on any executor. `None` once the ring is closed
    /// and drained.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no value.
    pub async fn next_async(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The oldest value, or `Pending` and a wake of `cx` when there is one or the ring closes. Only
    /// the waker of the last call is woken.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_with(cx, |locked| locked.pop().map(|oldest| oldest.value))
    }

    /// Moves the oldest values to the end of `values`, as long as they weigh at most `max` together
    /// and are at most `max` in number, but at least one if any is stored. One lock for all of them;
    /// values that are set meanwhile may be left for the next call. Returns how many were moved.
    pub fn take_into(&mut self, values: &mut Vec<T>, max: usize) -> usize {
        self.report_missed();
        values.reserve(self.len().clamp(1, max.max(1)));
        self.shared.lock().take_into(values, max)
    }

    /// As [`take_into`](Self::take_into), but waits for a first value as
    /// [`poll_next`](Self::poll_next) does. `Ready(0)` once the ring is closed and drained.
    pub fn poll_take_into(
        &mut self,
        cx: &mut Context<'_>,
        values: &mut Vec<T>,
        max: usize,
    ) -> Poll<usize> {
        values.reserve(self.len().clamp(1, max.max(1)));
        self.poll_with(cx, |locked| match locked.take_into(values, max) {
            0 => None,
            taken => Some(taken),
        })
        .map(Option::unwrap_or_default)
    }

    /// Closes the ring: values set from now on are dropped and counted as missed, those that are
    /// stored can still be read.
    pub fn close(&mut self) {
        self.shared.close();
    }

    /// Whether one of the two sides closed the ring. Values may still be stored.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// How many values are stored, read without the lock.
    pub fn len(&self) -> usize {
        self.shared.counters.values.load(Relaxed)
    }

    /// Whether nothing is stored, read without the lock.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Total weight of the stored values, read without the lock.
    pub fn queued_weight(&self) -> usize {
        self.shared.counters.weight.load(Relaxed)
    }

    /// Total bytes of the stored values, read without the lock.
    pub fn queued_bytes(&self) -> usize {
        self.shared.counters.bytes.load(Relaxed)
    }

    /// Total weight that was set and that this reader will not get, read without the lock.
    pub fn missed(&self) -> u64 {
        self.shared.missed()
    }

    fn report_missed(&mut self) {
        self.on_missed.report(|| self.shared.missed());
    }

    fn poll_with<R>(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut Locked<'_, T>) -> Option<R>,
    ) -> Poll<Option<R>> {
        self.report_missed();
        // Cloned only if needed, and without the lock. Declared before the guard, so that an
        // exchanged waker is dropped after it.
        let mut waker = None;
        loop {
            let mut locked = self.shared.lock();
            if let Some(taken) = take(&mut locked) {
                return Poll::Ready(Some(taken));
            }
            if locked.is_closed() {
                return Poll::Ready(None);
            }
            let registered = &mut locked.state.waker;
            if registered
                .as_ref()
                .is_some_and(|waker| waker.will_wake(cx.waker()))
            {
                return Poll::Pending;
            }
            if waker.is_some() {
                mem::swap(registered, &mut waker);
                return Poll::Pending;
            }
            drop(locked);
            waker = Some(cx.waker().clone());
        }
    }
}

/// Blocking iteration, which ends once the ring is closed and drained.
impl<T> Iterator for Reader<T> {
    type Item = T;

    /// The oldest value; sleeps while there is none. `None` once the ring is closed and drained.
    fn next(&mut self) -> Option<T> {
        block_on(|cx| self.poll_next(cx))
    }
}

impl<T> FusedIterator for Reader<T> {}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        // Both leave the lock before they are dropped.
        let (_queue, _waker) = {
            let mut locked = self.shared.lock();
            let counters = locked.counters;
            let left = counters.weight.load(Relaxed) as u64;
            let missed = counters.missed.load(Relaxed).wrapping_add(left);
            counters.closed.store(true, Relaxed);
            counters.missed.store(missed, Relaxed);
            counters.values.store(0, Relaxed);
            counters.weight.store(0, Relaxed);
            if let Some(budget) = locked.budget {
                budget.give_back(counters.bytes.load(Relaxed));
            }
            counters.bytes.store(0, Relaxed);
            (
                mem::take(&mut locked.state.queue),
                locked.state.waker.take(),
            )
        };
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(&self.shared, f, "Reader")
    }
}

fn debug<T>(shared: &Shared<T>, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    let counters = &shared.counters;
    f.debug_struct(name)
        .field("limits", &shared.limits)
        .field("queued_weight", &counters.weight.load(Relaxed))
        .field("queued_bytes", &counters.bytes.load(Relaxed))
        .field("missed", &shared.missed())
        .field("closed", &shared.is_closed())
        .finish_non_exhaustive()
}
