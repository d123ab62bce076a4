//! What can go wrong: making and starting a stage ([`Error`]), and writing to it ([`WriteError`]).

use std::fmt;
use std::io;

/// Why a stage could not be made or started.
///
/// ```
/// use fanout::{Error, FanoutWriter};
///
/// let no_workers = FanoutWriter::new(0, |_| |_: u32| {});
/// assert!(matches!(no_workers, Err(Error::NoWorkers)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of workers is 0.
    #[error("a fan-out stage needs at least one worker")]
    NoWorkers,

    /// The operating system refused a worker's thread. No worker is left running.
    #[error("thread of fan-out worker {worker} can't be started")]
    Spawn {
        /// The number of the worker.
        worker: usize,
        /// What the operating system said.
        source: io::Error,
    },

    /// The stage has been stopped before; it does not start again.
    #[error("the fan-out stage has been stopped")]
    Stopped,
}

/// Why an item was not accepted. Each kind gives the item back.
///
/// `Debug` and `Display` do not show the item, so that any type can be written and the error can
/// still be logged.
///
/// ```
/// use fanout::{FanoutWriter, WriteError};
///
/// let fanout = FanoutWriter::new(2, |_| |_: String| {})?;
/// fanout.start()?;
/// fanout.stop();
/// match fanout.write("too late".to_owned()) {
///     Err(WriteError::Stopped(item)) => assert_eq!(item, "too late"),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), fanout::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError<T> {
    /// The stage has been stopped.
    #[error("the fan-out stage has been stopped")]
    Stopped(T),

    /// The stage has not been started, and its buffer is full.
    #[error("the fan-out stage has not been started and its buffer is full")]
    NotStarted(T),

    /// The buffer is full; only from [`try_write`](crate::FanoutWriter::try_write).
    #[error("the buffer of the fan-out stage is full")]
    Full(T),
}

impl<T> WriteError<T> {
    /// The item that was not accepted.
    pub fn into_inner(self) -> T {
        match self {
            WriteError::Stopped(item) | WriteError::NotStarted(item) | WriteError::Full(item) => {
                item
            }
        }
    }
}

impl<T> fmt::Debug for WriteError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WriteError::Stopped(_) => "Stopped(..)",
            WriteError::NotStarted(_) => "NotStarted(..)",
            WriteError::Full(_) => "Full(..)",
        })
    }
}
