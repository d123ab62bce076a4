//! The slots and the protocol of the many-to-one ring: all of its atomics and all of its `unsafe`.
//!
//! A writer takes a ticket from `tail` and owns that place in the order of values from then on. The
//! ticket's slot has a state word, through which writers of different laps and the reader agree on
//! who may touch the slot's value:
//!
//! ```text
//!             claim                    store
//!   EMPTY(t) ───────────▶ WRITING(t) ───────────▶ FULL(t)
//!      ▲                      ▲                     │  │
//!      │                      │ claim by a later lap│  │
//!      │                      └─────────────────────┘  │
//!      └─────────────── TAKING(t) ◀────────────────────┘
//!          release                       take
//! ```
//!
//! Nobody waits for a slot. A writer that finds a newer ticket in it has been lapped, and its value
//! is lost. One that finds it in use by an older lap (a thread that was stopped in the middle of a
//! copy) gives its ticket up for lost after a short spin, and says so in `abandoned`.
//!
//! The reader goes through the tickets in order. Each is taken from its slot, or counted as missed:
//! when `capacity` newer ones exist, or when it was abandoned. So `delivered + missed` is exactly the
//! number of tickets that the reader went past, by construction.
//!
//! # Words
//!
//! A *position* is a ticket in units of 8, so that three bits are left for flags. Positions wrap, and
//! are compared by their distance; there are 2^61 of them.
//!
//! * `tail`: position of the next ticket; bit 0: closed, further tickets count as missed.
//! * `end`: 1, until the ring is closed; then the position from which on everything is missed.
//! * state of a slot: position; bits 0-1: phase; bit 2: the reader waits for this slot.
//!
//! There are at least as many slots as the capacity says, namely the next power of two: a mask
//! replaces a division, and the mask still fits when positions wrap. The capacity is exact all the
//! same, since the reader skips what is older.
//!
//! # Orderings
//!
//! * `store` (release) → `take` (acquire) hands a value from writer to reader, `store` → `claim`
//!   (acquire) from a writer to the one that overwrites it, `release` → `claim` the empty slot from
//!   the reader to a writer. Weaken one, and two threads touch a value at once.
//! * `claim` releases too: a reader that sees it sees that writer's ticket in `tail`, hence that it
//!   has been overrun.
//! * `arm` is a read-modify-write of the very word that `store` exchanges. Either `arm` comes first,
//!   and `store` returns the flag; or `store` does, and `arm` sees the value. No fence is needed.
//!   `arm` releases what was registered in `waker`, `store` acquires it.
//! * `abandon` and `close` are rare and always wake. Their write comes before the wake, the reader's
//!   second look comes after the registration, and `AtomicWaker` orders wake and registration: it
//!   finds the waker, or the second look finds the write.
//! * `tail` itself may be relaxed: whoever needs to see a ticket in it got there through one of the
//!   words above, or through whatever ordered the caller after that `set`.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crossbeam_utils::CachePadded;

use crate::primitives::{AtomicU64, AtomicUsize, AtomicWaker, UnsafeCell, spin_loop};

/// Distance of two neighbouring positions.
const STEP: u64 = 8;

const EMPTY: u64 = 0;
const WRITING: u64 = 1;
const FULL: u64 = 2;
const TAKING: u64 = 3;
const PHASE: u64 = 3;
const WAITING: u64 = 4;

/// In `tail`.
const CLOSED: u64 = 1;
/// In `end`; no position is odd.
const OPEN: u64 = 1;

/// How often a writer looks at a busy slot before it abandons its ticket: longer than it takes to
/// copy a value, far shorter than it takes for a stopped thread to come back.
const SPINS: u32 = if cfg!(diode_loom) { 1 } else { 100 };

const fn position(word: u64) -> u64 {
    word & !(STEP - 1)
}

/// Whether `a` is later than `b`, at most half of all positions apart.
const fn later(a: u64, b: u64) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

pub(super) struct Ring<T> {
    tail: CachePadded<AtomicU64>,
    reader: CachePadded<ReaderSide>,
    /// Live writer handles; the last one closes.
    pub(super) writers: AtomicUsize,
    /// In positions.
    capacity: u64,
    mask: usize,
    slots: Box<[Slot<T>]>,
    /// Per slot the latest ticket that was given up.
    abandoned: Box<[AtomicU64]>,
}

/// What the reader writes, and writers hardly ever look at.
struct ReaderSide {
    missed: AtomicU64,
    end: AtomicU64,
    waker: AtomicWaker,
}

struct Slot<T> {
    state: AtomicU64,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the ring hands values from thread to thread, never references to them; the state word of a
// slot gives exclusive access to its value.
unsafe impl<T: Send> Sync for Ring<T> {}

/// What the reader finds at its position.
pub(super) enum Look {
    /// The value may be there: try to take it.
    Full,
    /// Nothing to take now.
    Empty,
    /// The end of a closed ring.
    Closed,
    /// This many tickets are lost; go past them.
    Missed(u64),
}

impl<T> Ring<T> {
    /// `start` is the first ticket; anything but 0 is for tests of wrap-around.
    pub(super) fn new(capacity: usize, start: u64) -> Self {
        let len = capacity.next_power_of_two().max(2);
        let mask = len - 1;
        let start = start.wrapping_mul(STEP);
        let first = |index: usize| {
            // The first position from `start` on that falls on this slot.
            let ahead = index.wrapping_sub((start / STEP) as usize) & mask;
            start.wrapping_add(ahead as u64 * STEP)
        };
        Self {
            tail: CachePadded::new(AtomicU64::new(start)),
            reader: CachePadded::new(ReaderSide {
                missed: AtomicU64::new(0),
                end: AtomicU64::new(OPEN),
                waker: AtomicWaker::new(),
            }),
            writers: AtomicUsize::new(1),
            capacity: capacity as u64 * STEP,
            mask,
            slots: (0..len)
                .map(|index| Slot {
                    state: AtomicU64::new(first(index) | EMPTY),
                    value: UnsafeCell::new(MaybeUninit::uninit()),
                })
                .collect(),
            abandoned: (0..len)
                .map(|index| AtomicU64::new(first(index).wrapping_sub(len as u64 * STEP)))
                .collect(),
        }
    }

    fn index(&self, position: u64) -> usize {
        (position / STEP) as usize & self.mask
    }

    fn slot(&self, position: u64) -> &Slot<T> {
        &self.slots[self.index(position)]
    }

    // Writers' side

    pub(super) fn set(&self, value: T) {
        let tail = self.tail.fetch_add(STEP, Relaxed);
        if tail & CLOSED != 0 {
            return; // counted by its ticket, see `missed`
        }
        let ticket = position(tail);
        let slot = self.slot(ticket);
        let mut spins = 0;
        let mut state = slot.state.load(Relaxed);
        let replaced = loop {
            if later(position(state), ticket) {
                return; // lapped: the value is lost, as the reader finds out by itself
            }
            match state & PHASE {
                WRITING | TAKING if spins == SPINS => return self.abandon(ticket),
                WRITING | TAKING => {
                    spins += 1;
                    spin_loop();
                    state = slot.state.load(Relaxed);
                }
                phase => {
                    // claim
                    let claimed = ticket | WRITING | state & WAITING;
                    match slot
                        .state
                        .compare_exchange_weak(state, claimed, AcqRel, Relaxed)
                    {
                        Ok(_) => break phase == FULL,
                        Err(actual) => state = actual,
                    }
                }
            }
        };
        let replaced = slot.value.with_mut(|cell| {
            // SAFETY: WRITING(ticket) is ours alone: only the holder of this ticket enters it, and
            // nobody leaves it for us. In phase FULL the cell held a value, which moves out and is
            // never touched again, for the write below takes its place.
            unsafe {
                let old = replaced.then(|| (*cell).assume_init_read());
                (*cell).write(value);
                old
            }
        });
        // store
        let armed = slot.state.swap(ticket | FULL, AcqRel) & WAITING != 0;
        if armed {
            self.reader.waker.wake();
        }
        drop(replaced); // foreign code comes last, when the ring is whole
    }

    #[cold]
    fn abandon(&self, ticket: u64) {
        let abandoned = &self.abandoned[self.index(ticket)];
        let mut latest = abandoned.load(Relaxed);
        // Several laps may give up on one slot, and in any order. Only the latest one can be within
        // the capacity when the reader comes by, so that the others need not be remembered.
        while later(ticket, latest) {
            match abandoned.compare_exchange_weak(latest, ticket, Release, Relaxed) {
                Ok(_) => break,
                Err(actual) => latest = actual,
            }
        }
        self.reader.waker.wake();
    }

    // Either side

    pub(super) fn close(&self) {
        let tail = self.tail.fetch_or(CLOSED, Relaxed);
        if tail & CLOSED == 0 {
            // Fails if the reader has gone away meanwhile and set an earlier end.
            let _ = self
                .reader
                .end
                .compare_exchange(OPEN, position(tail), Release, Relaxed);
            self.reader.waker.wake();
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.tail.load(Relaxed) & CLOSED != 0
    }

    pub(super) fn missed(&self) -> u64 {
        let reader = &self.reader;
        // Acquire: pairs with `leave`, so that the end comes with the count that belongs to it.
        let end = reader.end.load(Acquire);
        let missed = reader.missed.load(Relaxed);
        if end == OPEN {
            return missed;
        }
        missed + position(self.tail.load(Relaxed)).wrapping_sub(end) / STEP
    }

    pub(super) fn capacity(&self) -> usize {
        (self.capacity / STEP) as usize
    }

    // Reader's side: one thread at a time, `next` is the reader's position

    pub(super) fn look(&self, next: u64) -> Look {
        if self.slot(next).state.load(Relaxed) == next | FULL && !self.is_overrun(next) {
            return Look::Full;
        }
        // Acquire: pairs with `close`, so that tickets before the end are in their slots.
        let end = self.reader.end.load(Acquire);
        let tail = self.tail.load(Relaxed);
        let tail = match (tail & CLOSED != 0, end) {
            // Somebody is inside `close` and about to wake us.
            (true, OPEN) => return self.look_at(next),
            (true, end) => end,
            (false, _) => tail,
        };
        let ahead = tail.wrapping_sub(next);
        if ahead > self.capacity {
            return Look::Missed((ahead - self.capacity) / STEP);
        }
        if ahead == 0 {
            return if end == OPEN {
                Look::Empty
            } else {
                Look::Closed
            };
        }
        // Acquire: pairs with `abandon`. No memory depends on it; it is what a wake from there shows.
        if self.abandoned[self.index(next)].load(Acquire) == next {
            return Look::Missed(1);
        }
        self.look_at(next)
    }

    fn look_at(&self, next: u64) -> Look {
        if self.slot(next).state.load(Relaxed) == next | FULL {
            Look::Full
        } else {
            Look::Empty // its writer is at it
        }
    }

    /// Whether the capacity is used up by newer tickets although the value is still in its slot: the
    /// slots are more than the capacity then. Reads no word that all writers write.
    fn is_overrun(&self, next: u64) -> bool {
        if self.capacity == self.slots.len() as u64 * STEP {
            return false;
        }
        let newer = next.wrapping_add(self.capacity);
        // Acquire: pairs with `claim`, so that `tail` confirms what we see here.
        let state = self.slot(newer).state.load(Acquire);
        state & PHASE != EMPTY && !later(newer, position(state))
    }

    pub(super) fn step(next: u64, tickets: u64) -> u64 {
        next.wrapping_add(tickets * STEP)
    }

    /// The position of the first ticket.
    pub(super) fn start(&self) -> u64 {
        position(self.tail.load(Relaxed))
    }

    pub(super) fn count_missed(&self, tickets: u64) {
        let missed = &self.reader.missed;
        missed.store(missed.load(Relaxed) + tickets, Relaxed); // only the reader writes it
    }

    /// `None` if a writer was faster and overwrote it.
    pub(super) fn take(&self, next: u64) -> Option<T> {
        self.take_from(self.slot(next), next | FULL)
    }

    fn take_from(&self, slot: &Slot<T>, full: u64) -> Option<T> {
        let ticket = position(full);
        // take
        slot.state
            .compare_exchange(full, ticket | TAKING, Acquire, Relaxed)
            .ok()?;
        // SAFETY: TAKING is ours alone: only the reader enters it, and writers leave it alone. The
        // phase was FULL, so that the cell holds a value; it counts as moved out from here on.
        let value = slot
            .value
            .with_mut(|cell| unsafe { (*cell).assume_init_read() });
        // release
        let free = ticket.wrapping_add(self.slots.len() as u64 * STEP);
        slot.state.store(free | EMPTY, Release);
        Some(value)
    }

    pub(super) fn register(&self, waker: &std::task::Waker) {
        self.reader.waker.register(waker);
    }

    /// Asks the writer of `next` for a wake. If it is through already, the next look finds its value.
    pub(super) fn arm(&self, next: u64) {
        let slot = self.slot(next);
        let mut state = slot.state.load(Relaxed);
        while state != next | FULL && state & WAITING == 0 {
            match slot
                .state
                .compare_exchange_weak(state, state | WAITING, Release, Relaxed)
            {
                Ok(_) => return,
                Err(actual) => state = actual,
            }
        }
    }

    /// The reader goes away: what is stored is dropped, and everything from `next` on is missed.
    pub(super) fn leave(&self, next: u64) {
        self.tail.fetch_or(CLOSED, Relaxed);
        // Release: pairs with `missed`.
        self.reader.end.store(next, Release);
        for slot in &self.slots {
            let state = slot.state.load(Relaxed);
            if state & PHASE == FULL {
                // A writer that is faster drops the value, and its own goes with the ring.
                drop(self.take_from(slot, state));
            }
        }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        for slot in &self.slots {
            if slot.state.load(Relaxed) & PHASE == FULL {
                // SAFETY: nobody else is left, and in phase FULL the cell holds a value.
                slot.value
                    .with_mut(|cell| unsafe { (*cell).assume_init_drop() });
            }
        }
    }
}
