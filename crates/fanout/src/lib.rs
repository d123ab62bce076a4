//! A worker stage: several workers run a callback concurrently, behind a bounded buffer, in any
//! order or in the order of a key.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
//!
//! use fanout::FanoutWriter;
//!
//! let letters = Arc::new(AtomicUsize::new(0));
//! let fanout = FanoutWriter::new(4, {
//!     let letters = letters.clone();
//!     move |_worker| {
//!         let letters = letters.clone();
//!         move |word: &'static str| {
//!             letters.fetch_add(word.len(), Relaxed);
//!         }
//!     }
//! })?;
//! fanout.start()?;
//! for word in ["the", "quick", "brown", "fox"] {
//!     fanout.write(word).expect("it has not been stopped");
//! }
//! fanout.stop();
//! assert_eq!(letters.load(Relaxed), 16);
//! # Ok::<(), fanout::Error>(())
//! ```
//!
//! # What it promises
//!
//! - **Nothing is lost, nothing is done twice.** An item whose [`write`](FanoutWriter::write)
//!   returned `Ok` is done exactly once, before [`stop`](FanoutWriter::stop) returns. Any other item
//!   comes back with the error.
//! - **The buffer is bounded**: by 2 items for each worker, 32 in each lane, or what
//!   [`with_buffer_size`](FanoutWriter::with_buffer_size) says; besides, each worker has one item in
//!   its hands. `write` waits for room, [`try_write`](FanoutWriter::try_write) does not.
//! - **Order per key, if asked for**: with [lanes](FanoutWriter::with_lanes), an item's callback
//!   begins when those of all earlier items of its lane have returned. A single worker keeps the
//!   order of all. Otherwise there is none.
//! - **A panic costs one item.** It is contained and counted, the worker goes on, and its callback is
//!   made anew, since its state may be half changed.
//! - **Stopping is safe** before the start, twice, by several, and while others write. What a writer
//!   is running itself at that moment is that writer's to finish.
//! - **An idle stage costs nothing**: its threads sleep until something is written.
//!
//! # Who runs the callback
//!
//! Handing an item to another thread costs some hundred nanoseconds if that thread is awake, and
//! several microseconds if it must be woken. A callback often costs less. Therefore a writer *runs
//! the callback itself* as long as that is cheaper, with a callback of its own from the same factory
//! and without taking a lock, and hands out only when two things hold: callbacks take at least half
//! of its time, and one costs more than half a microsecond. It finds out by timing a sample. While
//! it hands out and the buffer is full, it does an item itself rather than wait. (With lanes, it does
//! so only for items whose lane is idle; it takes the last lane as its own part of the work, and
//! waits when another one is full.)
//!
//! So cheap callbacks cost no more than without a stage, and dear ones run on all workers *and* the
//! writer. The consequences:
//!
//! - A callback may run on the thread that writes. Who holds a lock while writing that the callback
//!   takes, too, waits for himself.
//! - A slow callback delays the writer for as long as it takes, just as a full buffer would.
//! - Callbacks must not wait for each other: the one may be next in line on the same thread.
//! - There are more callbacks than workers, one more for each thread that ever writes; those last
//!   until the stage is dropped.
//! - With lanes, items that *different* writers write at the same time may overlap even if they have
//!   the same key. What one writer writes never does.
//!
//! Where that will not do, [`with_caller_runs(false)`](FanoutWriter::with_caller_runs) keeps
//! callbacks on the workers: for a writer that must never be held up, together with `try_write`; for
//! callbacks that wait for each other; for state that belongs to a lane, which then is always with
//! the same worker.
//!
//! A callback may write to its own stage: the item is queued, or run if that is in order. If the
//! buffer is full and all workers wait for room like this, nobody is left to make some.
#![forbid(unsafe_code)]

mod callback;
mod error;
mod policy;
mod queue;
mod writer;

pub use error::{Error, WriteError};
pub use writer::{FanoutWriter, Stats};

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
