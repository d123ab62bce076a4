//! Lossy ring buffers: the writer never blocks, the oldest values are overwritten and counted.
//!
//! For data whose source must not be held up by whoever reads it: logs, metrics, samples, frames. A
//! queue that is full either makes its writer wait or refuses the newest; these rings give up the
//! oldest, and the reader knows how many it has missed.
//!
//! - [`ManyToOne`]: any number of writers, without locks.
//! - [`OneToOne`]: one writer, whose handle can't be shared; the fastest.
//! - [`Weighted`]: any number of writers, bounded by what values weigh and by their bytes, also in
//!   common with other rings ([`Budget`]); a short lock.
//!
//! All have the same reader: [`try_next`](many_to_one::Reader::try_next) polls,
//! [`next`](many_to_one::Reader::next) blocks the thread, and
//! [`next_async`](many_to_one::Reader::next_async) waits on any async runtime.
//!
//! ```
//! use std::thread;
//!
//! let (writer, mut reader) = diode::ManyToOne::new(1_000)?.split();
//! let sensor = thread::spawn(move || (0..100).for_each(|sample| writer.set(sample)));
//!
//! // `None` once all writers are gone and everything was taken
//! let mut received = 0;
//! while let Some(_sample) = reader.next() {
//!     received += 1;
//! }
//! sensor.join().unwrap();
//! assert_eq!(received + reader.missed(), 100);
//! # Ok::<(), diode::Error>(())
//! ```
//!
//! # What always holds
//!
//! - Once writers have returned and the reader has drained: `set == delivered + missed`, exactly.
//! - An overrun loses only what did not fit: a ring of 4 with 5 values set has missed one.
//! - A stored value can be taken without any further `set`; no wake-up is lost.
//! - Values of one writer arrive in the order in which it set them.
//!
//! Loom models and stress tests stand behind each of them (`tests/`).

mod error;
pub mod many_to_one;
mod missed;
pub mod one_to_one;
mod primitives;
mod wait;
pub mod weighted;

pub use error::{Error, TryNextError};
pub use many_to_one::ManyToOne;
pub use one_to_one::OneToOne;
pub use weighted::{Budget, Limits, Weigh, Weighted};
