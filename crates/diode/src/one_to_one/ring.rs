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
//! * `oldest`: a side that fails acquires what the other released by succeeding. The reader then sees
//!   a `tail` by which it has been overrun, and the writer the block that the reader freed before.

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
        let block = (capacity / 8).clamp(1, MAX_BLOCK);
        let block = 1 << block.ilog2();
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
        next: start,
        base: 0,
        stale: false,
        unused: 0,
        freed_head: 0,
        closed: false,
    };
    let consumer = Consumer {
        ring,
        next: start,
        held: None,
        base: 0,
        end: None,
    };
    (producer, consumer)
}

/// The writer's side.
pub(super) struct Producer<T> {
    pub(super) ring: Arc<Ring<T>>,
    /// Position of the next ticket.
    next: u64,
    /// First slot of the block that is being filled.
    base: usize,
    /// That block was evicted: the slots that are not yet overwritten hold values.
    stale: bool,
    /// First slot of the blocks that were never used.
    unused: usize,
    freed_head: usize,
    closed: bool,
}

impl<T> Producer<T> {
    #[inline]
    pub(super) fn set(&mut self, value: T) {
        if self.closed {
            return add(&self.ring.refused, 1);
        }
        let offset = self.ring.offset(self.next);
        if offset == 0 {
            self.begin_block();
        }
        let ring = &*self.ring;
        let slot = &ring.slots[self.base + offset];
        let replaced = slot.with_mut(|cell| {
            // SAFETY: the block is ours, and the reader does not look at `tail` or above. A stale
            // slot holds a value, which moves out and is not touched again.
            unsafe {
                let replaced = self.stale.then(|| (*cell).assume_init_read());
                (*cell).write(value);
                replaced
            }
        });
        if offset + 1 == ring.block {
            self.stale = false;
        }
        self.next = self.next.wrapping_add(STEP);
        let tail = ring.tail.fetch_add(STEP, AcqRel);
        if tail & FLAGS != 0 {
            self.notice(tail, offset);
        }
        drop(replaced); // foreign code comes last, when the ring is whole
    }

    /// Finds a block to fill: one that is free, or else the oldest one.
    #[inline(never)]
    fn begin_block(&mut self) {
        let ring = &*self.ring;
        (self.base, self.stale) = loop {
            if self.freed_head != ring.reader.freed_tail.load(Acquire) {
                let place = self.freed_head & (ring.freed.len() - 1);
                self.freed_head = self.freed_head.wrapping_add(1);
                break (ring.freed[place].load(Relaxed), false);
            }
            if self.unused < ring.slots.len() {
                let base = self.unused;
                self.unused += ring.block;
                break (base, false);
            }
            let oldest = ring.oldest.load(Relaxed);
            let next = oldest.wrapping_add(ring.block_len());
            if ring
                .oldest
                .compare_exchange(oldest, next, AcqRel, Acquire)
                .is_ok()
            {
                break (ring.map(oldest).load(Relaxed), true);
            }
            // The reader was faster. It has freed the block that it held before.
        };
        ring.map(self.next).store(self.base, Relaxed);
    }

    #[cold]
    fn notice(&mut self, tail: u64, offset: usize) {
        let ring = &*self.ring;
        if tail & CLOSED != 0 {
            self.closed = true;
            add(&ring.refused, 1);
            // SAFETY: we have just stored it, and the reader does not go past the closing.
            let refused = ring.slots[self.base + offset]
                .with_mut(|cell| unsafe { (*cell).assume_init_read() });
            drop(refused);
        } else {
            ring.tail.fetch_and(!WAITING, Relaxed);
            ring.reader.waker.wake();
        }
    }

    pub(super) fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            self.ring.close();
        }
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.close();
        if self.stale {
            for slot in &self.ring.slots[self.base..][self.ring.offset(self.next)..self.ring.block]
            {
                // SAFETY: the block is ours, and its slots from here on hold evicted values.
                slot.with_mut(|cell| unsafe { (*cell).assume_init_drop() });
            }
        }
    }
}

/// The reader's side.
pub(super) struct Consumer<T> {
    pub(super) ring: Arc<Ring<T>>,
    /// Position of the oldest ticket that is neither delivered nor missed.
    next: u64,
    /// Where the block begins that was claimed last.
    held: Option<u64>,
    /// First slot of that block.
    base: usize,
    /// Where this side closed the ring: the writer may not know, and go on a little.
    end: Option<u64>,
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
    #[inline]
    pub(super) fn look(&mut self) -> Look {
        let tail = self.ring.tail.load(Acquire);
        let end = self.end.unwrap_or(position(tail));
        let ahead = end.wrapping_sub(self.next);
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
        if self.held != Some(self.ring.block_start(self.next)) && !self.claim() {
            return None;
        }
        let slot = &self.ring.slots[self.base + self.ring.offset(self.next)];
        self.next = self.next.wrapping_add(STEP);
        // SAFETY: we hold the block, and below `tail` it is filled. The value moves out: `next` is
        // past it.
        Some(slot.with_mut(|cell| unsafe { (*cell).assume_init_read() }))
    }

    /// Claims the block of `next`; false if the writer has evicted it.
    #[inline(never)]
    fn claim(&mut self) -> bool {
        let ring = &*self.ring;
        if self.held.take().is_some() {
            let freed = ring.reader.freed_tail.load(Relaxed);
            ring.freed[freed & (ring.freed.len() - 1)].store(self.base, Relaxed);
            ring.reader.freed_tail.store(freed.wrapping_add(1), Release);
        }
        let start = ring.block_start(self.next);
        let next = start.wrapping_add(ring.block_len());
        // Read before: as long as the block is unclaimed, its entry in the map stays.
        let base = ring.map(start).load(Relaxed);
        if ring
            .oldest
            .compare_exchange(start, next, AcqRel, Acquire)
            .is_err()
        {
            return false;
        }
        self.held = Some(start);
        self.base = base;
        true
    }

    /// Goes past values, and drops those that the writer has not evicted.
    #[cold]
    fn skip(&mut self, tickets: u64) {
        let target = self.next.wrapping_add(tickets * STEP);
        while self.next != target {
            let start = self.ring.block_start(self.next);
            let left = target.wrapping_sub(self.next);
            let in_block = start
                .wrapping_add(self.ring.block_len())
                .wrapping_sub(self.next);
            if self.held == Some(start) || self.claim() {
                add(&self.ring.reader.missed, 1);
                drop(self.take());
            } else {
                let evicted = left.min(in_block);
                add(&self.ring.reader.missed, evicted / STEP);
                self.next = self.next.wrapping_add(evicted);
            }
        }
    }

    /// Asks for a wake of `waker` by the next value. False if there is something already.
    pub(super) fn arm(&mut self, waker: &Waker) -> bool {
        self.ring.reader.waker.register(waker);
        let tail = self.ring.tail.fetch_or(WAITING, AcqRel);
        tail & CLOSED == 0 && position(tail) == self.next
    }

    pub(super) fn close(&mut self) {
        let tail = self.ring.close();
        self.end.get_or_insert(position(tail));
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.close();
        if let Some(end) = self.end {
            self.skip(end.wrapping_sub(self.next) / STEP);
        }
    }
}
