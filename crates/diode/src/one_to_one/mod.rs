//! A lossy ring for one writer and one reader, without locks.
//!
//! Here are the handles and what they promise; the protocol is in `ring`.

mod ring;

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::iter::FusedIterator;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use crate::error::{Error, TryNextError};
use crate::missed::OnMissed;
use crate::wait::block_on;
use ring::{Consumer, Look, Producer, Ring};

/// Builds a ring of a fixed capacity for one writer and one reader: the fastest of the rings.
///
/// # Examples
///
/// ```
/// use diode::OneToOne;
///
/// let (mut writer, mut reader) = OneToOne::new(4)?.split();
/// for letter in ["a", "b", "c", "d", "e"] {
///     writer.set(letter);
/// }
/// assert_eq!(reader.try_next(), Ok("b")); // "a" was overwritten
/// assert_eq!(reader.missed(), 1);
/// # Ok::<(), diode::Error>(())
/// ```
pub struct OneToOne<T> {
    capacity: usize,
    start: u64,
    on_missed: OnMissed,
    values: PhantomData<fn(T) -> T>,
}

impl<T> OneToOne<T> {
    /// A ring for `capacity` values. Its slots are allocated by [`split`](Self::split): up to half as
    /// many again, and three at least.
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
        let (producer, consumer) = ring::ring(self.capacity, self.start);
        let writer = Writer {
            producer,
            not_sync: PhantomData,
        };
        let reader = Reader {
            consumer,
            on_missed: self.on_missed,
        };
        (writer, reader)
    }
}

impl<T> fmt::Debug for OneToOne<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneToOne")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// The writing end of a [`OneToOne`] ring. Dropping it closes the ring.
///
/// There is one, for a second writer would overwrite what the first one is about to store. It moves
/// to another thread, but can be neither cloned nor shared:
///
/// ```
/// # let (writer, reader) = diode::OneToOne::<u8>::new(1)?.split();
/// std::thread::spawn(move || drop(writer)).join().unwrap();
/// # Ok::<(), diode::Error>(())
/// ```
/// ```compile_fail,E0599
/// # let (writer, reader) = diode::OneToOne::<u8>::new(1)?.split();
/// drop(writer.clone());
/// # Ok::<(), diode::Error>(())
/// ```
/// ```compile_fail,E0277
/// # let (writer, reader) = diode::OneToOne::<u8>::new(1)?.split();
/// std::thread::scope(|scope| scope.spawn(|| writer.missed()).join()).unwrap();
/// # Ok::<(), diode::Error>(())
/// ```
///
/// # Examples
///
/// ```
/// use diode::OneToOne;
///
/// let (mut writer, reader) = OneToOne::new(100)?.split();
/// std::thread::spawn(move || (0..3).for_each(|number| writer.set(number)));
/// assert_eq!(reader.collect::<Vec<_>>(), [0, 1, 2]);
/// # Ok::<(), diode::Error>(())
/// ```
pub struct Writer<T> {
    producer: Producer<T>,
    /// `set` takes `&mut self` as it is; this rules out sharing for whatever may come.
    not_sync: PhantomData<Cell<()>>,
}

impl<T> Writer<T> {
    /// Stores `value` as the newest; if the ring is full, the oldest value makes room.
    ///
    /// Never fails and never waits. On a closed ring the value is dropped and counted as missed.
    #[inline]
    pub fn set(&mut self, value: T) {
        self.producer.set(value);
    }

    /// Closes the ring: the reader gets what is stored and then the end.
    pub fn close(&mut self) {
        self.producer.close();
    }

    /// Whether one of the two sides closed the ring.
    pub fn is_closed(&self) -> bool {
        self.producer.ring.is_closed()
    }

    /// How many values were set that the reader will not get, as far as it found out: overwritten
    /// ones count when the reader comes by. Values set on a closed ring, or left behind by a reader
    /// that is gone, count at once.
    pub fn missed(&self) -> u64 {
        self.producer.ring.missed()
    }
}

impl<T> fmt::Debug for Writer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(&self.producer.ring, f, "Writer")
    }
}

/// The reading end of a [`OneToOne`] ring. Dropping it closes the ring, and what was left counts as
/// missed.
///
/// Wait as you like: by blocking (it is an [`Iterator`]), in a task
/// ([`next_async`](Self::next_async), on any executor), or by polling.
///
/// # Examples
///
/// ```
/// use diode::{OneToOne, TryNextError};
///
/// let (mut writer, mut reader) = OneToOne::new(100)?.split();
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
    consumer: Consumer<T>,
    on_missed: OnMissed,
}

impl<T> Reader<T> {
    /// The oldest value, without waiting.
    ///
    /// # Errors
    ///
    /// [`TryNextError::Empty`] if nothing is stored, [`TryNextError::Closed`] if nothing ever will be.
    #[inline]
    pub fn try_next(&mut self) -> Result<T, TryNextError> {
        loop {
            match self.consumer.look() {
                Look::Ready(_) => {
                    if let Some(value) = self.consumer.take() {
                        return Ok(value);
                    }
                }
                Look::Missed => self.report_missed(),
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
        loop {
            match self.try_next() {
                Ok(value) => return Poll::Ready(Some(value)),
                Err(TryNextError::Closed) => return Poll::Ready(None),
                Err(TryNextError::Empty) if self.consumer.arm(cx.waker()) => return Poll::Pending,
                Err(TryNextError::Empty) => {}
            }
        }
    }

    /// Moves up to `max` of the oldest values to the end of `values`, without waiting. Returns how
    /// many.
    pub fn take_into(&mut self, values: &mut Vec<T>, max: usize) -> usize {
        let before = values.len();
        loop {
            match self.consumer.look() {
                Look::Ready(there) => {
                    let wanted = (max - (values.len() - before)).min(there as usize);
                    values.reserve(wanted);
                    values.extend((0..wanted).map_while(|_| self.consumer.take()));
                    // Short of that only if something was evicted meanwhile.
                    if values.len() - before == max || wanted == there as usize {
                        return values.len() - before;
                    }
                }
                Look::Missed => self.report_missed(),
                Look::Empty => return values.len() - before,
                Look::Closed => {
                    self.report_missed();
                    return values.len() - before;
                }
            }
        }
    }

    /// Closes the ring: values set from now on are dropped and counted as missed, those that are
    /// stored can still be read.
    pub fn close(&mut self) {
        self.consumer.close();
    }

    /// Whether one of the two sides closed the ring. Values may still be stored.
    pub fn is_closed(&self) -> bool {
        self.consumer.ring.is_closed()
    }

    /// How many values were set that this reader did not get and will not get, as far as it went:
    /// what was overwritten counts when the reader comes by.
    pub fn missed(&self) -> u64 {
        self.consumer.ring.missed()
    }

    fn report_missed(&mut self) {
        self.on_missed.report(|| self.consumer.ring.missed());
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

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(&self.consumer.ring, f, "Reader")
    }
}

fn debug<T>(ring: &Ring<T>, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    f.debug_struct(name)
        .field("capacity", &ring.capacity())
        .field("missed", &ring.missed())
        .field("closed", &ring.is_closed())
        .finish_non_exhaustive()
}
