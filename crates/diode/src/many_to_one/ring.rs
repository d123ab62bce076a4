//! The slots and the protocol of the many-to-one ring: all of its atomics and all of its `unsafe`.
//!
//! A writer takes a ticket from `tail` and owns that place in the order of values from then on. The
//! ticket's slot has a state word, through which writers of different laps and the reader agree on
//! who may touch the slot's value:
//!
//! ```text
//!              claim               store
//!   EMPTY(t) ─────────▶ WRITING(t) ─────────▶ FULL(t) ───▶ claim by a later lap, which drops the value
//!      ▲                                         │
//!      │          release              take      │
//!      └─────────────────── TAKING(t) ◀──────────┘
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
//! A *position* is a ticket in units of 16, so that four bits are left for flags. Positions wrap, and
//! are compared by their distance; there are 2^60 of them.
//!
//! * `tail`: position of the next ticket; bit 0: closed, further tickets count as missed.
//! * `end`: 1, until the ring is closed; then the position from which on everything is missed.
//! * state of a slot: position; bits 0-1: phase; bit 2: the reader waits for this slot; bit 3: the
//!   writer in here will look at bit 2.
//!
//! There are at least as many slots as the capacity says, namely the next power of two: a mask
//! replaces a division, and the mask still fits when positions wrap. The capacity is exact all the
//! same, since the reader skips what is older.
//!
//! # Waiting
//!
//! A reader that wants to sleep sets bit 2 of its slot by a read-modify-write (`arm`). A writer that
//! finds the bit when it claims the slot, or when it exchanges the state to store its value, wakes
//! the reader. One word decides, so that no fence is needed.
//!
//! The exchange costs as much as half a `set`, and is spared while no reader ever slept on this ring
//! (`sleeps`): then the value is stored by a plain write. A claim says which of the two it will be
//! (bit 3), and the reader does not arm a slot whose writer won't look. It can meet such a writer only
//! in its first waits, and then looks again until that writer is through.
//!
//! # Orderings
//!
//! * `store` (release) → `take` (acquire) hands a value from writer to reader, `store` → `claim`
//!   (acquire) from a writer to the one that overwrites it, `release` → `claim` the empty slot from
//!   the reader to a writer. Weaken one, and two threads touch a value at once.
//! * `claim` and `store` release too, and `look` and `arm` acquire: a reader that sees a newer ticket
//!   in its slot sees it in `tail`, hence that it has been overrun. Otherwise it could go to sleep in
//!   front of a slot that nobody comes to any more.
//! * `arm` releases what was registered in `waker`; `claim` and the exchange in `store` acquire it.
//! * `abandon` and `close` are rare and always wake. Their write comes before the wake, the reader's
//!   second look comes after the registration, and `AtomicWaker` orders wake and registration: it
//!   finds the waker, or the second look finds the write.
//! * `tail` itself may be relaxed: whoever needs to see a ticket in it got there through one of the
//!   words above, or through whatever ordered the caller after that `set`.
//! * `sleeps` may be relaxed: it only chooses between two ways that are both right.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::Waker;

use crossbeam_utils::CachePadded;

use crate::primitives::{AtomicBool, AtomicU64, AtomicUsize, AtomicWaker, UnsafeCell, spin_loop};

/// Distance of two neighbouring positions.
const STEP: u64 = 16;

const EMPTY: u64 = 0;
const WRITING: u64 = 1;
const FULL: u64 = 2;
const TAKING: u64 = 3;
const PHASE: u64 = 3;
const WAITING: u64 = 4;
const LOOKS: u64 = 8;

/// In `tail`.
const CLOSED: u64 = 1;
/// In `end`; no position is odd.
const OPEN: u64 = 1;

/// How often a writer looks at a busy slot before it abandons its ticket, and a reader at a writer
/// that it can't arm: longer than it takes to copy a value, far shorter than it takes for a stopped
/// thread to come back.
const SPINS: u32 = if cfg!(diode_loom) { 0 } else { 100 };

/// How long a writer pauses that lost the race for a ticket, in turns of `spin_loop`: so long the
/// first time, twice as long each further time, and at last it takes a ticket in any case. All of it
/// are 504 turns, of 25 ns each on the machine of `docs/performance.md`. With shorter pauses, or with
/// a single one, two writers fall into step: then they fetch each cache line from each other for each
/// set, which takes up to 130 ns instead of 20 (`cargo xtask bench diode`, `writers-2`).
const FIRST_PAUSE: u32 = 8;
const PAUSES: u32 = if cfg!(diode_loom) { 1 } else { 6 };

const CACHE_LINE: usize = 64;

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
    /// Whether the reader ever slept, see "Waiting".
    sleeps: AtomicBool,
    /// In positions.
    capacity: u64,
    layout: Layout,
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

/// Which slot belongs to a ticket.
///
/// Writers hold neighbouring tickets at the same time. Where several slots fit into a cache line,
/// neighbours are put on different lines, so that those writers do not fetch one line from each other.
struct Layout {
    mask: usize,
    bits: u32,
    spread: u32,
}

impl Layout {
    fn new<T>(capacity: usize) -> Self {
        let len = capacity.next_power_of_two().max(2);
        let bits = len.trailing_zeros();
        let per_line = (CACHE_LINE / size_of::<Slot<T>>()).max(1);
        Self {
            mask: len - 1,
            bits,
            spread: per_line.next_power_of_two().trailing_zeros().min(bits - 1),
        }
    }

    const fn len(&self) -> usize {
        self.mask + 1
    }

    /// One lap in positions.
    const fn lap(&self) -> u64 {
        self.len() as u64 * STEP
    }

    /// The low bits of the ticket, rotated.
    const fn index(&self, position: u64) -> usize {
        let ticket = (position / STEP) as usize & self.mask;
        (ticket << self.spread | ticket >> (self.bits - self.spread)) & self.mask
    }
}

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
        let start = start.wrapping_mul(STEP);
        let layout = Layout::new::<T>(capacity);
        // Ahead of the first lap, every slot waits for its first ticket.
        let mut first = vec![0; layout.len()];
        for ticket in 0..layout.len() as u64 {
            let position = start.wrapping_add(ticket * STEP);
            first[layout.index(position)] = position;
        }
        Self {
            tail: CachePadded::new(AtomicU64::new(start)),
            reader: CachePadded::new(ReaderSide {
                missed: AtomicU64::new(0),
                end: AtomicU64::new(OPEN),
                waker: AtomicWaker::new(),
            }),
            writers: AtomicUsize::new(1),
            sleeps: AtomicBool::new(false),
            capacity: capacity as u64 * STEP,
            slots: first
                .iter()
                .map(|position| Slot {
                    state: AtomicU64::new(position | EMPTY),
                    value: UnsafeCell::new(MaybeUninit::uninit()),
                })
                .collect(),
            abandoned: first
                .iter()
                .map(|position| AtomicU64::new(position.wrapping_sub(layout.lap())))
                .collect(),
            layout,
        }
    }

    fn slot(&self, position: u64) -> &Slot<T> {
        &self.slots[self.layout.index(position)]
    }

    fn abandoned(&self, position: u64) -> &AtomicU64 {
        &self.abandoned[self.layout.index(position)]
    }

    // --- The writers' side ---

    pub(super) fn set(&self, value: T) {
        let Some((ticket, slot, state)) = self.ticket() else {
            return;
        };
        let Some(claim) = self.claim(slot, ticket, state) else {
            return;
        };
        let replaced = slot.value.with_mut(|cell| {
            // SAFETY: WRITING(ticket) is ours alone: only the holder of this ticket enters it, and
            // nobody leaves it for us. If the slot was full the cell holds a value, which moves out
            // and is not touched again, for the write takes its place.
            unsafe {
                let replaced = claim.was_full.then(|| (*cell).assume_init_read());
                (*cell).write(value);
                replaced
            }
        });
        self.store(slot, ticket, claim.looks);
        drop(replaced); // foreign code comes last, when the ring is whole
    }

    /// The next ticket, its slot and what that looked like; or `None` if the ring is closed: that
    /// ticket counts as missed.
    ///
    /// An exchange that fails means that another writer is at it in this very moment. A pause lets
    /// it do several sets with all cache lines at hand. It also matters to look at the slot before
    /// the ticket is ours: if that has to come from another processor, the other writer is ahead by
    /// then, the exchange fails, and it is this writer alone that pauses.
    #[inline]
    fn ticket(&self) -> Option<(u64, &Slot<T>, u64)> {
        let mut tail = self.tail.load(Relaxed);
        let mut pauses = 0;
        while tail & CLOSED == 0 && pauses < PAUSES {
            let slot = self.slot(tail);
            let state = slot.state.load(Relaxed);
            let next = tail.wrapping_add(STEP);
            match self.tail.compare_exchange(tail, next, Relaxed, Relaxed) {
                Ok(_) => return Some((tail, slot, state)),
                Err(actual) => tail = actual,
            }
            (0..FIRST_PAUSE << pauses).for_each(|_| spin_loop());
            pauses += 1;
        }
        let tail = self.tail.fetch_add(STEP, Relaxed);
        let slot = self.slot(position(tail));
        (tail & CLOSED == 0).then(|| (tail, slot, slot.state.load(Relaxed)))
    }

    /// Exclusive access to the slot, or `None` if the ticket and its value are lost.
    #[inline]
    fn claim(&self, slot: &Slot<T>, ticket: u64, mut state: u64) -> Option<Claim> {
        let looks = if self.sleeps.load(Relaxed) { LOOKS } else { 0 };
        let mut spins = 0;
        loop {
            if later(position(state), ticket) {
                return None; // lapped, as the reader finds out by itself
            }
            if state & PHASE == WRITING || state & PHASE == TAKING {
                if spins == SPINS {
                    self.abandon(ticket);
                    return None;
                }
                spins += 1;
                spin_loop();
                state = slot.state.load(Relaxed);
                continue;
            }
            let looks = if state & WAITING != 0 { LOOKS } else { looks };
            let writing = ticket | WRITING | looks | state & WAITING;
            match slot
                .state
                .compare_exchange_weak(state, writing, AcqRel, Relaxed)
            {
                Ok(_) => {
                    return Some(Claim {
                        was_full: state & PHASE == FULL,
                        looks: looks != 0,
                    });
                }
                Err(actual) => state = actual,
            }
        }
    }

    #[inline]
    fn store(&self, slot: &Slot<T>, ticket: u64, looks: bool) {
        if !looks {
            // Nothing else changes the state meanwhile: the reader does not arm it.
            slot.state.store(ticket | FULL, Release);
        } else if slot.state.swap(ticket | FULL, AcqRel) & WAITING != 0 {
            self.reader.waker.wake();
        }
    }

    #[cold]
    fn abandon(&self, ticket: u64) {
        let abandoned = self.abandoned(ticket);
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

    // --- Either side ---

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
        // Acquire: pairs with `leave`, so that an end comes with the count that belongs to it.
        let end = self.reader.end.load(Acquire);
        let missed = self.reader.missed.load(Relaxed);
        if end == OPEN {
            return missed;
        }
        missed + position(self.tail.load(Relaxed)).wrapping_sub(end) / STEP
    }

    pub(super) fn capacity(&self) -> usize {
        (self.capacity / STEP) as usize
    }

    // --- The reader's side: one thread at a time, `next` is the reader's position ---

    /// The position of the first ticket.
    pub(super) fn start(&self) -> u64 {
        position(self.tail.load(Relaxed))
    }

    pub(super) fn after(next: u64, tickets: u64) -> u64 {
        next.wrapping_add(tickets * STEP)
    }

    #[inline]
    pub(super) fn look(&self, next: u64) -> Look {
        // Acquire: pairs with `claim`. Who sees a newer ticket in the slot sees it in `tail`, too.
        if self.slot(next).state.load(Acquire) == next | FULL && !self.is_overrun(next) {
            return Look::Full;
        }
        // Acquire: pairs with `close`, so that tickets before the end are in their slots.
        let end = self.reader.end.load(Acquire);
        let tail = self.tail.load(Relaxed);
        let tail = match (tail & CLOSED != 0, end) {
            (false, _) => tail,
            // Somebody is inside `close`, and will wake us. Until then the end is unknown.
            (true, OPEN) => return self.look_once_more(next),
            (true, end) => end,
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
        if self.abandoned(next).load(Acquire) == next {
            return Look::Missed(1);
        }
        self.look_once_more(next)
    }

    fn look_once_more(&self, next: u64) -> Look {
        if self.slot(next).state.load(Relaxed) == next | FULL {
            Look::Full
        } else {
            Look::Empty // its writer is at it
        }
    }

    /// Whether newer tickets use up the capacity although the value is still in its slot, as there
    /// are more slots than that. Reads no word that every writer writes.
    #[inline]
    fn is_overrun(&self, next: u64) -> bool {
        if self.capacity == self.layout.lap() {
            return false;
        }
        let newer = next.wrapping_add(self.capacity);
        // Acquire: pairs with `claim`, so that `tail` confirms what we see here.
        let state = self.slot(newer).state.load(Acquire);
        state & PHASE != EMPTY && !later(newer, position(state))
    }

    pub(super) fn count_missed(&self, tickets: u64) {
        let missed = &self.reader.missed;
        missed.store(missed.load(Relaxed) + tickets, Relaxed); // only the reader writes it
    }

    /// `None` if a writer was faster and overwrote it.
    #[inline]
    pub(super) fn take(&self, next: u64) -> Option<T> {
        self.take_from(self.slot(next), next | FULL)
    }

    #[inline]
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
        let free = ticket.wrapping_add(self.layout.lap());
        slot.state.store(free | EMPTY, Release);
        Some(value)
    }

    /// Says whom to wake. [`arm`](Self::arm) comes next.
    pub(super) fn register(&self, waker: &Waker) {
        self.sleeps.store(true, Relaxed);
        self.reader.waker.register(waker);
    }

    /// Asks the writer of `next` for a wake; if it is through already, or overtaken, the next look
    /// tells. False if the writer in the slot can't be asked, and is to be looked at again.
    pub(super) fn arm(&self, next: u64) -> bool {
        let slot = self.slot(next);
        let mut spins = 0;
        let mut state = slot.state.load(Acquire);
        loop {
            let there = state == next | FULL || later(position(state), next);
            if there || state & WAITING != 0 {
                return true;
            }
            if state & PHASE == WRITING && state & LOOKS == 0 {
                if spins == SPINS {
                    return false;
                }
                spins += 1;
                spin_loop();
                state = slot.state.load(Acquire);
                continue;
            }
            match slot
                .state
                .compare_exchange_weak(state, state | WAITING, AcqRel, Acquire)
            {
                Ok(_) => return true,
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

/// A slot that is ours to write.
struct Claim {
    /// It holds a value of an earlier lap.
    was_full: bool,
    /// The reader may arm it, so that the state has to be exchanged.
    looks: bool,
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
