//! The slots and the protocol of the one-to-one ring: all of its atomics and all of its `unsafe`.
//!
//! A locked instruction costs more than everything else in a `set` or a `take` together, so that the
//! protocol is made to need few of them. The slots come in blocks, and the two sides agree on whole
//! blocks:
//!
//! ```text
//!            ┌──────────── freed, taken up again ──────────────┐
//!            ▼                                                 │
//!   writer's block ──▶ unclaimed blocks, oldest first ──▶ reader's block
//!            ▲                    │              claim
//!            └─── evicted ────────┘
//! ```
//!
//! A full ring makes the writer evict the oldest unclaimed block, and the reader claims that very
//! block when it comes by: both move `oldest` forward by compare-and-exchange, and whoever succeeds
//! has the block to itself. The writer never touches the block that the reader holds, be it that the
//! reader stopped in there for good; there is always another one, see [`Ring::new`]. Within a block
//! there is nothing to agree on: the writer fills it in order, and the reader reads below `tail`. The
//! reader may even claim the block that is being filled.
//!
//! So `set` has one read-modify-write, the one that publishes the value in `tail` and fetches the
//! flags that the reader may have left there; and `take` has none.
//!
//! Blocks are evicted as a whole, but only when they are outside the capacity altogether: there are
//! enough of them. What is outside the capacity the reader skips, one by one. Evicted values are
//! dropped when the writer overwrites them, one in each `set`.
//!
//! # Words
//!
//! A *position* is a ticket in units of 4, so that two bits are left for flags. Positions wrap, and
//! are compared by their distance; there are 2^62 of them.
//!
//! * `tail`: position of the next ticket; bit 0: closed, nothing is stored from here on; bit 1: the
//!   reader waits.
//! * `oldest`: position at which the oldest unclaimed block begins.
//! * `map`: for a block's position the block that holds it.
//! * `freed`, `freed_tail`: a queue of blocks from the reader back to the writer.
//!
//! # Orderings
//!
//! * `tail`: the writer's add releases a value and the `map` entry of its block, the reader's load
//!   acquires them. `arm` releases what was registered in `waker`, the writer's add acquires it. `arm`
//!   and the add are read-modify-writes of one word, so that one of them comes first: the add returns
//!   the flag, or `arm` returns a tail with the value. No fence is needed.
//! * `freed_tail`: the reader's store releases its last look into the block, the writer's load acquires
//!   it before the block is written again.
//! * `oldest`: each side releases by its exchange. A reader that fails acquires a `tail` by which it has
//!   been overrun. A writer that sees a claim acquires the block that the reader freed before.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::task::Waker;

use crossbeam_utils::CachePadded;

use crate::primitives::{Arc, AtomicU64, AtomicUsize, AtomicWaker, UnsafeCell};

/// Distance of two neighbouring positions.
const STEP: u64 = 4;

/// In `tail`.
const CLOSED: u64 = 1;
const WAITING: u64 = 2;
const FLAGS: u64 = CLOSED | WAITING;

/// Beyond this the share of the block's cost in a `set` can't be measured any more.
const MAX_BLOCK: usize = 32;
/// A block holds this part of the capacity, so that a small ring does not hold many more values than
/// it has room for. Models need blocks of several slots in rings of a few.
const BLOCKS: usize = if cfg!(diode_loom) { 1 } else { 8 };

const fn position(word: u64) -> u64 {
    word & !FLAGS
}

pub(super) struct Ring<T> {
    tail: CachePadded<AtomicU64>,
    oldest: CachePadded<AtomicU64>,
    reader: CachePadded<ReaderSide>,
    /// Values that the writer set on the closed ring. Only the writer writes it.
    refused: AtomicU64,
    /// In positions.
    capacity: u64,
    /// Slots per block, a power of two.
    block: usize,
    map: Box<[AtomicUsize]>,
    freed: Box<[AtomicUsize]>,
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
}

/// What the reader writes, and the writer looks at once per block at most.
struct ReaderSide {
    missed: AtomicU64,
    freed_tail: AtomicUsize,
    waker: AtomicWaker,
}

// SAFETY: the ring hands values from thread to thread, never references to them; who may touch a slot
// is agreed on as described above.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// `start` is the first ticket, rounded down to a block; anything but 0 is for tests.
    ///
    /// How many blocks are enough? When the writer begins a block and none is free, all blocks but
    /// the reader's are unclaimed. The oldest of them is evicted, and `capacity` values have to be in
    /// the others. Hence two blocks more than the capacity fills.
    fn new(capacity: usize, start: u64) -> Self {
        let block = 1 << (capacity / BLOCKS).clamp(1, MAX_BLOCK).ilog2();
        let blocks = capacity.div_ceil(block) + 2;
        let start = start.wrapping_mul(STEP) & !(block as u64 * STEP - 1);
        // A power of two, so that places stay apart when positions wrap.
        let queue = || {
            (0..blocks.next_power_of_two())
                .map(|_| AtomicUsize::new(0))
                .collect()
        };
        Self {
            tail: CachePadded::new(AtomicU64::new(start)),
            oldest: CachePadded::new(AtomicU64::new(start)),
            reader: CachePadded::new(ReaderSide {
                missed: AtomicU64::new(0),
                freed_tail: AtomicUsize::new(0),
                waker: AtomicWaker::new(),
            }),
            refused: AtomicU64::new(0),
            capacity: capacity as u64 * STEP,
            block,
            map: queue(),
            freed: queue(),
            slots: (0..blocks * block)
                .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
                .collect(),
        }
    }

    /// One block in positions.
    fn block_len(&self) -> u64 {
        self.block as u64 * STEP
    }

    /// Where the block of a position begins.
    fn block_start(&self, position: u64) -> u64 {
        position & !(self.block_len() - 1)
    }

    /// The place of a position in its block.
    fn offset(&self, position: u64) -> usize {
        (position / STEP) as usize & (self.block - 1)
    }

    /// Which block holds this position.
    fn map(&self, position: u64) -> &AtomicUsize {
        let block = (position / self.block_len()) as usize;
        &self.map[block & (self.map.len() - 1)]
    }

    fn close(&self) -> u64 {
        let tail = self.tail.fetch_or(CLOSED, AcqRel);
        if tail & CLOSED == 0 {
            self.reader.waker.wake();
        }
        tail
    }

    pub(super) fn is_closed(&self) -> bool {
        self.tail.load(Relaxed) & CLOSED != 0
    }

    pub(super) fn missed(&self) -> u64 {
        self.reader.missed.load(Relaxed) + self.refused.load(Relaxed)
    }

    pub(super) fn capacity(&self) -> usize {
        (self.capacity / STEP) as usize
    }
}

/// Adds to a counter that only the caller writes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed) + more, Relaxed);
}

pub(super) fn ring<T>(capacity: usize, start: u64) -> (Producer<T>, Consumer<T>) {
    let ring = Arc::new(Ring::new(capacity, start));
    let start = position(ring.tail.load(Relaxed));
    let producer = Producer {
        ring: Arc::clone(&ring),
        slot: 0,
        limit: 0,
        block: start,
        stale: false,
        unused: 0,
        freed_head: 0,
        closed: false,
    };
    let consumer = Consumer {
        ring,
        slot: 0,
        limit: 0,
        origin: start,
        held: None,
        end: start,
        closed: false,
    };
    (producer, consumer)
}

/// The writer's side.
pub(super) struct Producer<T> {
    pub(super) ring: Arc<Ring<T>>,
    /// Where the next value goes, in the block that is being filled.
    slot: usize,
    /// Where that block ends.
    limit: usize,
    /// Position at which the next block begins.
    block: u64,
    /// The block was evicted: the slots that are left hold values.
    stale: bool,
    /// First slot of the blocks that were never used.
    unused: usize,
    freed_head: usize,
    closed: bool,
}

impl<T> Producer<T> {
    #[inline]
    pub(super) fn set(&mut self, value: T) {
        if self.slot == self.limit && !self.begin_block() {
            return;
        }
        let ring = &*self.ring;
        let slot = self.slot;
        self.slot += 1;
        debug_assert!(slot < ring.slots.len());
        // SAFETY: blocks lie within the slots, and `slot` was before the end of one.
        let cell = unsafe { ring.slots.get_unchecked(slot) };
        let replaced = cell.with_mut(|cell| {
            // SAFETY: the block is ours, and the reader does not look at `tail` or above. A stale
            // slot holds a value, which moves out and is not touched again.
            unsafe {
                let replaced = self.stale.then(|| (*cell).assume_init_read());
                (*cell).write(value);
                replaced
            }
        });
        let tail = ring.tail.fetch_add(STEP, AcqRel);
        if tail & FLAGS != 0 {
            self.notice(tail, slot);
        }
        drop(replaced); // foreign code comes last, when the ring is whole
    }

    /// Finds a block to fill: one that is free, or else the oldest one. False if the ring is closed.
    #[inline(never)]
    fn begin_block(&mut self) -> bool {
        let ring = &*self.ring;
        if self.closed {
            add(&ring.refused, 1);
            return false;
        }
        (self.slot, self.stale) = loop {
            // First of all: what the reader freed before it claimed up to here is seen below, and
            // what it claims from here on makes the exchange fail. So nothing is evicted as long as
            // there is a free block.
            let oldest = ring.oldest.load(Acquire);
            if self.freed_head != ring.reader.freed_tail.load(Acquire) {
                let place = self.freed_head & (ring.freed.len() - 1);
                self.freed_head = self.freed_head.wrapping_add(1);
                break (ring.freed[place].load(Relaxed), false);
            }
            if self.unused < ring.slots.len() {
                let unused = self.unused;
                self.unused += ring.block;
                break (unused, false);
            }
            debug_assert!(oldest != self.block, "the reader holds one block at most");
            let next = oldest.wrapping_add(ring.block_len());
            let evict = ring.oldest.compare_exchange(oldest, next, AcqRel, Relaxed);
            if evict.is_ok() {
                break (ring.map(oldest).load(Relaxed), true);
            }
        };
        self.limit = self.slot + ring.block;
        ring.map(self.block).store(self.slot, Relaxed);
        self.block = self.block.wrapping_add(ring.block_len());
        true
    }

    #[cold]
    fn notice(&mut self, tail: u64, slot: usize) {
        let ring = &*self.ring;
        if tail & CLOSED == 0 {
            ring.tail.fetch_and(!WAITING, Relaxed);
            ring.reader.waker.wake();
            return;
        }
        add(&ring.refused, 1);
        // SAFETY: we have just stored it, and the reader does not go past the closing.
        let refused = ring.slots[slot].with_mut(|cell| unsafe { (*cell).assume_init_read() });
        self.stop();
        drop(refused);
    }

    pub(super) fn close(&mut self) {
        self.ring.close();
        self.stop();
    }

    /// Stores nothing any more, and drops what was evicted and not yet overwritten.
    fn stop(&mut self) {
        self.closed = true;
        let left = self.slot..self.limit;
        self.limit = self.slot;
        if self.stale {
            for slot in &self.ring.slots[left] {
                // SAFETY: the block is ours, and its slots from here on hold evicted values.
                slot.with_mut(|cell| unsafe { (*cell).assume_init_drop() });
            }
        }
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The reader's side.
pub(super) struct Consumer<T> {
    pub(super) ring: Arc<Ring<T>>,
    /// Where the next value is, if that is in the block that is held.
    slot: usize,
    /// Where that block ends.
    limit: usize,
    /// Slot and position differ by this, see `next`: so a `take` has one field to write.
    origin: u64,
    /// First slot of the block that is held.
    held: Option<usize>,
    /// Where this side closed the ring, if it did: the writer goes on until it notices.
    end: u64,
    closed: bool,
}

/// What the reader finds.
pub(super) enum Look {
    /// This many values are there.
    Ready(u64),
    /// Nothing to take now.
    Empty,
    /// The end of a closed ring.
    Closed,
    /// Some values were skipped; look again.
    Missed,
}

impl<T> Consumer<T> {
    /// Position of the oldest ticket that is neither delivered nor missed.
    #[inline]
    fn next(&self) -> u64 {
        self.origin.wrapping_add(self.slot as u64 * STEP)
    }

    #[inline]
    pub(super) fn look(&mut self) -> Look {
        let tail = self.ring.tail.load(Acquire);
        let end = if self.closed {
            self.end
        } else {
            position(tail)
        };
        let ahead = end.wrapping_sub(self.next());
        if ahead == 0 {
            return if tail & CLOSED == 0 {
                Look::Empty
            } else {
                Look::Closed
            };
        }
        if ahead > self.ring.capacity {
            self.skip((ahead - self.ring.capacity) / STEP);
            return Look::Missed;
        }
        Look::Ready(ahead / STEP)
    }

    /// Takes the oldest value, one of those that `look` has seen. `None` if it was evicted since.
    #[inline]
    pub(super) fn take(&mut self) -> Option<T> {
        if self.slot == self.limit && !self.claim() {
            return None;
        }
        debug_assert!(self.slot < self.ring.slots.len());
        // SAFETY: blocks lie within the slots, and `slot` is before the end of one.
        let slot = unsafe { self.ring.slots.get_unchecked(self.slot) };
        self.slot += 1;
        // SAFETY: we hold the block, and below `tail` it is filled. The value moves out: `slot` is
        // past it.
        Some(slot.with_mut(|cell| unsafe { (*cell).assume_init_read() }))
    }

    /// Claims the block of `next`; false if the writer has evicted it.
    #[inline(never)]
    fn claim(&mut self) -> bool {
        let ring = &*self.ring;
        if let Some(held) = self.held.take() {
            let freed = ring.reader.freed_tail.load(Relaxed);
            ring.freed[freed & (ring.freed.len() - 1)].store(held, Relaxed);
            ring.reader.freed_tail.store(freed.wrapping_add(1), Release);
        }
        let next = self.next();
        let start = ring.block_start(next);
        let end = start.wrapping_add(ring.block_len());
        // Read before: as long as the block is unclaimed, its entry in the map stays.
        let first = ring.map(start).load(Relaxed);
        if ring
            .oldest
            .compare_exchange(start, end, AcqRel, Acquire)
            .is_err()
        {
            return false;
        }
        self.held = Some(first);
        self.slot = first + ring.offset(next);
        self.limit = first + ring.block;
        self.origin = start.wrapping_sub(first as u64 * STEP);
        true
    }

    /// Goes past values, and drops those that the writer has not evicted.
    #[cold]
    fn skip(&mut self, tickets: u64) {
        let mut left = tickets;
        while left > 0 {
            let ours = self.slot < self.limit || self.claim();
            let gone = if ours {
                1
            } else {
                left.min((self.ring.block - self.ring.offset(self.next())) as u64)
            };
            left -= gone;
            add(&self.ring.reader.missed, gone);
            if ours {
                drop(self.take());
            } else {
                self.origin = self.origin.wrapping_add(gone * STEP);
            }
        }
    }

    /// Asks for a wake of `waker` by the next value. False if there is something already.
    pub(super) fn arm(&mut self, waker: &Waker) -> bool {
        self.ring.reader.waker.register(waker);
        let tail = self.ring.tail.fetch_or(WAITING, AcqRel);
        tail & CLOSED == 0 && position(tail) == self.next()
    }

    pub(super) fn close(&mut self) {
        let tail = self.ring.close();
        if !self.closed {
            self.closed = true;
            self.end = position(tail);
        }
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.close();
        self.skip(self.end.wrapping_sub(self.next()) / STEP);
    }
}
