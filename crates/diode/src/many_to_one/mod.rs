//! A lossy ring for any number of writers and one reader, without locks.
//!
//! Here are the handles and what they promise; the protocol is in `ring`.

mod ring;

use std::fmt;
use std::future::poll_fn;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::task::{Context, Poll};

use crate::error::{Error, TryNextError};
use crate::missed::OnMissed;
use crate::primitives::{Arc, yield_now};
use crate::wait::block_on;
use ring::{Look, Ring};

/// Builds a ring of a fixed capacity for any number of writers and one reader.
///
/// # Examples
///
/// ```
/// use diode::ManyToOne;
///
/// let (writer, mut reader) = ManyToOne::new(4)?.split();
/// for letter in ["a", "b", "c", "d", "e"] {
///     writer.set(letter);
/// }
/// assert_eq!(reader.try_next(), Ok("b")); // "a" was overwritten
/// assert_eq!(reader.missed(), 1);
/// # Ok::<(), diode::Error>(())
/// ```
pub struct ManyToOne<T> {
    capacity: usize,
    start: u64,
    on_missed: OnMissed,
    values: PhantomData<fn(T) -> T>,
}

impl<T> ManyToOne<T> {
    /// A ring for `capacity` values. Its slots are allocated by [`split`](Self::split), their number
    /// rounded up to a power of two.
    ///
    /// # Errors
    ///
    /// [`Error::ZeroCapacity`], or [`Error::CapacityTooLarge`] beyond 2^32 values.
    pub fn new(capacity: usize) -> Result<Self, Error> {
        Ok(Self {
            capacity: Error::check_capacity(capacity)?,
            start: 0,
            on_missed: OnMissed::none(),
            values: PhantomData,
        })
    }

    /// Calls `callback` with the number of values that were missed since its last call.
    ///
    /// It runs on the reader's side, inside the reader's methods and before they take a value. A
    /// panic in it reaches the caller of that method and costs no value.
    #[must_use]
    pub fn on_missed(mut self, callback: impl FnMut(u64) + Send + 'static) -> Self {
        self.on_missed = OnMissed::new(callback);
        self
    }

    /// Numbers the first value `ticket`, so that a test need not count up to the wrap-around.
    #[doc(hidden)]
    #[must_use]
    pub fn starting_at(mut self, ticket: u64) -> Self {
        self.start = ticket;
        self
    }

    /// The two ends of the ring.
    pub fn split(self) -> (Writer<T>, Reader<T>) {
        let ring = Arc::new(Ring::new(self.capacity, self.start));
        let reader = Reader {
            next: ring.start(),
            ring: Arc::clone(&ring),
            on_missed: self.on_missed,
        };
        (Writer { ring }, reader)
    }
}

impl<T> fmt::Debug for ManyToOne<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManyToOne")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// A writing end of a [`ManyToOne`] ring. Clone it for more writers; the last one to go closes the
/// ring.
///
/// # Examples
///
/// ```
/// use diode::ManyToOne;
///
/// let (writer, reader) = ManyToOne::new(100)?.split();
/// let other = writer.clone();
/// std::thread::spawn(move || other.set(1)).join().unwrap();
/// writer.set(2);
/// drop(writer);
/// assert_eq!(reader.collect::<Vec<_>>(), [1, 2]);
/// # Ok::<(), diode::Error>(())
/// ```
pub struct Writer<T> {
    ring: Arc<Ring<T>>,
}

impl<T> Writer<T> {
    /// Stores `value` as the newest; if the ring is full, the oldest value makes room and is dropped
    /// here.
    ///
    /// Never fails and never waits for anybody; a writer that meets another one at it pauses, for a
    /// dozen microseconds at most. On a closed ring the value is dropped and counted as missed.
    ///
    /// Should the value's slot be held up, since a thread was stopped while it copied a value one
    /// whole capacity ago, then this value is the one that is dropped and missed.
    pub fn set(&self, value: T) {
        self.ring.set(value);
    }

    /// Closes the ring: the reader gets what is stored and then the end.
    pub fn close(&self) {
        self.ring.close();
    }

    /// Whether one of the two sides closed the ring.
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// How many values were set that the reader will not get, as far as it found out: overwritten
    /// ones count when the reader comes by. Values set on a closed ring, or left behind by a reader
    /// that is gone, count at once.
    pub fn missed(&self) -> u64 {
        self.ring.missed()
    }
}

impl<T> Clone for Writer<T> {
    fn clone(&self) -> Self {
        // Relaxed: the count can't reach 0 in between, since `self` is one of those counted.
        self.ring.writers.fetch_add(1, Relaxed);
        Self {
            ring: Arc::clone(&self.ring),
        }
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        // AcqRel: the last writer's `close` releases what the others stored.
        if self.ring.writers.fetch_sub(1, AcqRel) == 1 {
            self.ring.close();
        }
    }
}

impl<T> fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(&self.ring, f, "Writer")
    }
}

/// The reading end of a [`ManyToOne`] ring. Dropping it closes the ring, and what was left counts as
/// missed.
///
/// Wait as you like: by blocking (it is an [`Iterator`]), in a task
/// ([`next_async`](Self::next_async), on any executor), or by polling.
///
/// # Examples
///
/// ```
/// use diode::{ManyToOne, TryNextError};
///
/// let (writer, mut reader) = ManyToOne::new(100)?.split();
/// assert_eq!(reader.try_next(), Err(TryNextError::Empty));
/// (0..5).for_each(|number| writer.set(number));
/// drop(writer);
///
/// let mut batch = Vec::new();
/// assert_eq!(reader.take_into(&mut batch, 3), 3);
/// assert_eq!(batch, [0, 1, 2]);
/// assert_eq!(reader.next(), Some(3));
/// assert_eq!(reader.next(), Some(4));
/// assert_eq!(reader.next(), None);
/// # Ok::<(), diode::Error>(())
/// ```
pub struct Reader<T> {
    ring: Arc<Ring<T>>,
    /// Position of the oldest ticket that is neither delivered nor missed.
    next: u64,
    on_missed: OnMissed,
}

impl<T> Reader<T> {
    /// The oldest value, without waiting.
    ///
    /// # Errors
    ///
    /// [`TryNextError::Empty`] if nothing is stored, [`TryNextError::Closed`] if nothing ever will be.
    pub fn try_next(&mut self) -> Result<T, TryNextError> {
        loop {
            match self.ring.look(self.next) {
                Look::Full => {
                    if let Some(value) = self.ring.take(self.next) {
                        self.next = Ring::<T>::after(self.next, 1);
                        return Ok(value);
                    }
                }
                Look::Missed(tickets) => {
                    self.next = Ring::<T>::after(self.next, tickets);
                    self.ring.count_missed(tickets);
                    self.report_missed();
                }
                Look::Empty => return Err(TryNextError::Empty),
                Look::Closed => {
                    self.report_missed();
                    return Err(TryNextError::Closed);
                }
            }
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
        let mut armed = None;
        loop {
            match self.try_next() {
                Ok(value) => return Poll::Ready(Some(value)),
                Err(TryNextError::Closed) => return Poll::Ready(None),
                // Nothing there since we asked for a wake at this very place.
                Err(TryNextError::Empty) if armed == Some(self.next) => return Poll::Pending,
                Err(TryNextError::Empty) => {
                    if armed.is_none() {
                        self.ring.register(cx.waker());
                    }
                    armed = Some(self.next);
                    if !self.ring.arm(self.next) {
                        // Only in the first waits of a ring, see there: a writer is in the middle of
                        // a copy and will not wake us. Most likely it needs this processor.
                        yield_now();
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    /// Moves up to `max` of the oldest values to the end of `values`, without waiting. Returns how
    /// many.
    pub fn take_into(&mut self, values: &mut Vec<T>, max: usize) -> usize {
        for taken in 0..max {
            match self.try_next() {
                Ok(value) => values.push(value),
                Err(_) => return taken,
            }
        }
        max
    }

    /// Closes the ring: values set from now on are dropped and counted as missed, those that are
    /// stored can still be read.
    pub fn close(&mut self) {
        self.ring.close();
    }

    /// Whether one of the two sides closed the ring. Values may still be stored.
    pub fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }

    /// How many values were set that this reader did not get and will not get, as far as it went:
    /// what was overwritten counts when the reader comes by.
    pub fn missed(&self) -> u64 {
        self.ring.missed()
    }

    fn report_missed(&mut self) {
        self.on_missed.report(|| self.ring.missed());
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
        self.ring.leave(self.next);
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(&self.ring, f, "Reader")
    }
}

fn debug<T>(ring: &Ring<T>, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    f.debug_struct(name)
        .field("capacity", &ring.capacity())
        .field("missed", &ring.missed())
        .field("closed", &ring.is_closed())
        .finish_non_exhaustive()
}
