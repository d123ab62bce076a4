//! The bounded queue between writers and workers, and who sleeps on it.
//!
//! One mutex guards everything, so there is no wake-up to lose. What makes it fast is how seldom
//! anybody is woken, since waking a thread costs far more than handing it an item:
//!
//! - a push wakes a sleeping worker only if no other worker is already looking for something to
//!   do, and a worker that finds more than it takes wakes the next one;
//! - a worker that finds nothing, and a writer that finds no room, look again for a few
//!   microseconds before they sleep;
//! - a worker may take several items at once.

use std::collections::VecDeque;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a worker looks for new items before it sleeps.
const WORKER_PATIENCE: Duration = Duration::from_micros(5);
/// How long a writer looks for room before it sleeps.
const WRITER_PATIENCE: Duration = Duration::from_micros(20);

pub(crate) struct Queue<T> {
    inner: Mutex<Inner<T>>,
    /// A worker waits here for an item.
    items_or_close: Condvar,
    /// A writer waits here for room.
    room_or_close: Condvar,
    capacity: usize,
    /// Copies of what `inner` says, for looking without the lock. They are stored under the lock.
    waiting: AtomicUsize,
    unfinished: AtomicUsize,
    closed: AtomicBool,
}

struct Inner<T> {
    items: VecDeque<T>,
    /// Items that were pushed and whose callback has not returned.
    unfinished: usize,
    /// Workers that are awake without an item, or about to be: each will look at the queue again.
    searching: usize,
    /// Workers that found nothing.
    idle: Sleepers,
    /// Writers that found no room.
    blocked: Sleepers,
    closed: bool,
}

/// Threads that sleep on one of the two conditions. A wake-up is a token here, so that nobody
/// mistakes a spurious return of the condition variable for one.
#[derive(Default)]
struct Sleepers {
    /// How many sleep and have no wake-up coming.
    asleep: usize,
    /// Wake-ups given and not yet taken.
    wakes: usize,
}

/// Why an item was not pushed.
pub(crate) enum PushError<T> {
    Full(T),
    Closed(T),
}

/// What one worker carries from one [`Queue::take`] to the next.
#[derive(Default)]
pub(crate) struct Taker {
    /// Items taken and since then finished.
    taken: usize,
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
                closed: false,
            }),
            items_or_close: Condvar::new(),
            room_or_close: Condvar::new(),
            capacity,
            waiting: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        }
    }

    /// How many items wait for a worker.
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Whether every item that was pushed is finished. What the callbacks did is then visible here.
    pub(crate) fn is_idle(&self) -> bool {
        // Acquire: pairs with the Release in `update`.
        self.unfinished.load(Ordering::Acquire) == 0
    }

    /// Puts an item at the end if there is room. True if the queue was idle before.
    pub(crate) fn try_push(&self, item: T) -> Result<bool, PushError<T>> {
        let inner = self.lock();
        if inner.closed {
            return Err(PushError::Closed(item));
        }
        if inner.items.len() >= self.capacity {
            return Err(PushError::Full(item));
        }
        Ok(self.push(inner, item))
    }

    /// Puts an item at the end, waits for room if there is none. Gives the item back if the queue
    /// is closed meanwhile.
    pub(crate) fn push_blocking(&self, mut item: T) -> Result<bool, T> {
        loop {
            match self.try_push(item) {
                Ok(was_idle) => return Ok(was_idle),
                Err(PushError::Closed(item)) => return Err(item),
                Err(PushError::Full(back)) => item = back,
            }
            if !look_for(WRITER_PATIENCE, || {
                self.len() < self.capacity || self.is_closed()
            }) {
                let inner = self.lock();
                if inner.items.len() >= self.capacity && !inner.closed {
                    drop(sleep(inner, &self.room_or_close, |inner| {
                        &mut inner.blocked
                    }));
                }
            }
        }
    }

    fn push(&self, mut inner: MutexGuard<'_, Inner<T>>, item: T) -> bool {
        let was_idle = inner.unfinished == 0;
        inner.items.push_back(item);
        inner.unfinished += 1;
        self.update(&inner);
        let wake = inner.wake_worker();
        drop(inner);
        if wake {
            self.items_or_close.notify_one();
        }
        was_idle
    }

    /// Moves up to `share` items into `batch`, waits while there are none. Whatever was taken
    /// before counts as finished. False once the queue is closed and empty.
    pub(crate) fn take(&self, taker: &mut Taker, share: usize, batch: &mut Vec<T>) -> bool {
        let mut inner = self.lock();
        inner.unfinished -= std::mem::take(&mut taker.taken);
        let mut searching = false;
        loop {
            if !inner.items.is_empty() {
                inner.searching -= usize::from(searching);
                self.hand_out(inner, taker, share, batch);
                return true;
            }
            self.update(&inner);
            if inner.closed {
                inner.searching -= usize::from(searching);
                return false;
            }
            if !searching {
                searching = true;
                inner.searching += 1;
            }
            drop(inner);
            let found = look_for(WORKER_PATIENCE, || self.len() > 0 || self.is_closed());
            inner = self.lock();
            if !found && inner.items.is_empty() && !inner.closed {
                inner.searching -= 1;
                let woken;
                (inner, woken) = sleep(inner, &self.items_or_close, |inner| &mut inner.idle);
                // who gives a wake-up counts its taker as searching
                inner.searching += usize::from(!woken);
            }
        }
    }

    fn hand_out(
        &self,
        mut inner: MutexGuard<'_, Inner<T>>,
        taker: &mut Taker,
        share: usize,
        batch: &mut Vec<T>,
    ) {
        taker.taken = share.min(inner.items.len());
        batch.extend(inner.items.drain(..taker.taken));
        self.update(&inner);
        let worker = !inner.items.is_empty() && inner.wake_worker();
        let writers = inner.blocked.wake(taker.taken);
        drop(inner);
        if worker {
            self.items_or_close.notify_one();
        }
        for _ in 0..writers {
            self.room_or_close.notify_one();
        }
    }

    /// Nothing is accepted any more; workers take what is left, then end.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.closed = true;
        self.closed.store(true, Ordering::Relaxed);
        drop(inner);
        self.items_or_close.notify_all();
        self.room_or_close.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Refreshes the copies that are read without the lock.
    fn update(&self, inner: &Inner<T>) {
        self.waiting.store(inner.items.len(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `is_idle`, so that a writer which sees an idle lane
        // also sees everything its callbacks did.
        self.unfinished.store(inner.unfinished, Ordering::Release);
    }

    /// Nothing in here can leave the queue half changed, so a poisoned lock is as good as any.
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Inner<T> {
    /// Whether a sleeping worker is to be woken: not if another one will look at the queue anyway.
    fn wake_worker(&mut self) -> bool {
        let wake = self.searching == 0 && self.idle.wake(1) == 1;
        self.searching += usize::from(wake);
        wake
    }
}

impl Sleepers {
    /// How many are to be woken, at most so many.
    fn wake(&mut self, most: usize) -> usize {
        let woken = most.min(self.asleep);
        self.asleep -= woken;
        self.wakes += woken;
        woken
    }
}

/// Sleeps until woken or the queue is closed; true if woken.
fn sleep<'a, T>(
    mut inner: MutexGuard<'a, Inner<T>>,
    condvar: &Condvar,
    sleepers: impl Fn(&mut Inner<T>) -> &mut Sleepers,
) -> (MutexGuard<'a, Inner<T>>, bool) {
    sleepers(&mut inner).asleep += 1;
    let mut inner = condvar
        .wait_while(inner, |inner| sleepers(inner).wakes == 0 && !inner.closed)
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

/// Looks again and again for at most this long, without keeping the CPU from others.
fn look_for(patience: Duration, mut there: impl FnMut() -> bool) -> bool {
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
