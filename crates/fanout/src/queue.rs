//! The bounded queue between writers and workers, and who sleeps on it.
//!
//! One mutex guards everything, so there is no wake-up to lose. It is fast enough because nobody is
//! woken who need not be, which would cost far more than handing over an item, and because the two
//! sides touch it seldom: each time they do, it moves from one core's cache to the other's.
//!
//! - A push wakes a sleeping worker only if no other one is already looking for something to do,
//!   and a worker that leaves items behind wakes the next one.
//! - A worker that finds nothing, and a writer that finds no room, look again for some
//!   microseconds before they sleep.

use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a worker looks for an item before it sleeps.
const WORKER_PATIENCE: Duration = Duration::from_micros(5);
/// How long a writer looks for room before it sleeps.
const WRITER_PATIENCE: Duration = Duration::from_micros(20);

/// In this order, since `inner` fills a cache line, and the signs are to be on another one.
#[repr(C)]
pub(crate) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    signs: Signs,
    capacity: usize,
    /// Idle workers wait here.
    item_or_close: Condvar,
    /// Writers wait here.
    room_or_close: Condvar,
}

struct Inner<T> {
    items: VecDeque<T>,
    /// Items that were pushed and whose callback has not returned, as far as workers have told.
    unfinished: u32,
    /// Workers that have no item and will look at the queue again before they sleep.
    searching: u32,
    /// Workers that found no item.
    idle: Sleepers,
    /// Writers that found no room.
    blocked: Sleepers,
}

/// What can be seen of the queue without the lock. A sign changes under the lock, and is written
/// only when what it says changes: seldom, while there is much to do.
#[derive(Default)]
struct Signs {
    has_items: AtomicBool,
    is_full: AtomicBool,
    has_unfinished: AtomicBool,
    is_closed: AtomicBool,
}

/// Threads that sleep on one of the two conditions. A wake-up is a token, so that nobody mistakes
/// a spurious return of the condition variable for one.
#[derive(Default)]
struct Sleepers {
    /// How many sleep and have no wake-up coming.
    asleep: u32,
    /// Wake-ups given and not yet taken.
    wakes: u32,
}

/// What a push found.
pub(crate) struct Pushed {
    /// Items that were waiting already.
    pub(crate) waiting: usize,
    /// Whether all items before were finished.
    pub(crate) was_idle: bool,
}

/// Why an item was not pushed.
pub(crate) enum PushError<T> {
    Full(T),
    Closed(T),
}

impl<T> Queue<T> {
    pub(crate) fn new(capacity: usize) -> Queue<T> {
        assert!(capacity > 0);
        Queue {
            inner: Mutex::new(Inner {
                items: VecDeque::new(),
                unfinished: 0,
                searching: 0,
                idle: Sleepers::default(),
                blocked: Sleepers::default(),
            }),
            signs: Signs::default(),
            capacity,
            item_or_close: Condvar::new(),
            room_or_close: Condvar::new(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many items wait for a worker.
    pub(crate) fn len(&self) -> usize {
        self.lock().items.len()
    }

    /// Whether every item that was pushed is finished. What the callbacks did is then visible here.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `finish`.
        !self.signs.has_unfinished.load(Ordering::Acquire)
    }

    /// Puts an item at the end if there is room.
    pub(crate) fn try_push(&self, item: T) -> Result<Pushed, PushError<T>> {
        let mut inner = self.lock();
        if self.is_closed() {
            return Err(PushError::Closed(item));
        }
        let waiting = inner.items.len();
        if waiting >= self.capacity {
            return Err(PushError::Full(item));
        }
        inner.items.push_back(item);
        if waiting == 0 {
            self.signs.has_items.store(true, Ordering::Relaxed);
        }
        if waiting + 1 == self.capacity {
            self.signs.is_full.store(true, Ordering::Relaxed);
        }
        let was_idle = inner.unfinished == 0;
        inner.unfinished += 1;
        if was_idle {
            self.signs.has_unfinished.store(true, Ordering::Relaxed);
        }
        let wake = inner.wake_worker();
        drop(inner);
        if wake {
            self.item_or_close.notify_one();
        }
        Ok(Pushed { waiting, was_idle })
    }

    /// Puts an item at the end, waits for room if there is none. Gives the item back if the queue
    /// is closed meanwhile.
    pub(crate) fn push(&self, mut item: T) -> Result<Pushed, T> {
        loop {
            match self.try_push(item) {
                Ok(pushed) => return Ok(pushed),
                Err(PushError::Closed(item)) => return Err(item),
                Err(PushError::Full(back)) => item = back,
            }
            let there = || !self.signs.is_full.load(Ordering::Relaxed) || self.is_closed();
            if !look_for(WRITER_PATIENCE, there) {
                let inner = self.lock();
                if !there() {
                    drop(self.sleep(inner, &self.room_or_close, |inner| &mut inner.blocked));
                }
            }
        }
    }

    /// Takes the first item, waits while there is none. None once the queue is closed and empty.
    ///
    /// `finished` says that the caller took an item before, whose callback has returned since.
    pub(crate) fn take(&self, finished: bool) -> Option<T> {
        let mut inner = self.lock();
        if finished {
            self.finish(&mut inner);
        }
        let mut searching = false;
        loop {
            if let Some(item) = inner.items.pop_front() {
                inner.searching -= u32::from(searching);
                self.taken(inner);
                return Some(item);
            }
            if self.is_closed() {
                inner.searching -= u32::from(searching);
                return None;
            }
            if !searching {
                searching = true;
                inner.searching += 1;
            }
            drop(inner);
            let there = || self.signs.has_items.load(Ordering::Relaxed) || self.is_closed();
            let found = look_for(WORKER_PATIENCE, there);
            inner = self.lock();
            if !found && !there() {
                inner.searching -= 1;
                let woken;
                (inner, woken) = self.sleep(inner, &self.item_or_close, |inner| &mut inner.idle);
                // who gives a wake-up counts its taker as searching
                inner.searching += u32::from(!woken);
            }
        }
    }

    fn finish(&self, inner: &mut Inner<T>) {
        inner.unfinished -= 1;
        if inner.unfinished == 0 {
            // Release: pairs with the Acquire in `is_idle`.
            self.signs.has_unfinished.store(false, Ordering::Release);
        }
    }

    /// An item has been taken: tells all whom that concerns.
    fn taken(&self, mut inner: MutexGuard<'_, Inner<T>>) {
        let left = inner.items.len();
        if left == 0 {
            self.signs.has_items.store(false, Ordering::Relaxed);
        }
        if left + 1 == self.capacity {
            self.signs.is_full.store(false, Ordering::Relaxed);
        }
        let worker = left > 0 && inner.wake_worker();
        let writer = inner.blocked.wake();
        drop(inner);
        if worker {
            self.item_or_close.notify_one();
        }
        if writer {
            self.room_or_close.notify_one();
        }
    }

    /// Nothing is accepted any more; workers take what is left, then end.
    pub(crate) fn close(&self) {
        let inner = self.lock();
        self.signs.is_closed.store(true, Ordering::Relaxed);
        drop(inner);
        self.item_or_close.notify_all();
        self.room_or_close.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.signs.is_closed.load(Ordering::Relaxed)
    }

    /// Nothing that is done under the lock can leave it half done, so a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until woken, or until the queue is closed; true if woken.
    fn sleep<'a>(
        &self,
        mut inner: MutexGuard<'a, Inner<T>>,
        condvar: &Condvar,
        sleepers: impl Fn(&mut Inner<T>) -> &mut Sleepers,
    ) -> (MutexGuard<'a, Inner<T>>, bool) {
        sleepers(&mut inner).asleep += 1;
        let mut inner = condvar
            .wait_while(inner, |inner| {
                sleepers(inner).wakes == 0 && !self.is_closed()
            })
            .unwrap_or_else(PoisonError::into_inner);
        let sleepers = sleepers(&mut inner);
        let woken = sleepers.wakes > 0;
        if woken {
            sleepers.wakes -= 1;
        } else {
            sleepers.asleep -= 1;
        }
        (inner, woken)
    }
}

impl<T> Inner<T> {
    /// Whether a sleeping worker is to be woken: not if another one will look at the queue anyway.
    fn wake_worker(&mut self) -> bool {
        let wake = self.searching == 0 && self.idle.wake();
        self.searching += u32::from(wake);
        wake
    }
}

impl Sleepers {
    /// Whether one is to be woken.
    fn wake(&mut self) -> bool {
        let wake = self.asleep > 0;
        self.asleep -= u32::from(wake);
        self.wakes += u32::from(wake);
        wake
    }
}

/// Looks again and again for at most this long, without keeping the CPU from others.
fn look_for(patience: Duration, there: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if there() {
                return true;
            }
            hint::spin_loop();
        }
        if start.elapsed() >= patience {
            return false;
        }
        thread::yield_now();
    }
}
