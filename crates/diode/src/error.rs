//! What can go wrong: a ring without room, and a look into a ring that has nothing to give.
//!
//! `set` is not here on purpose. It never fails: a ring makes room by giving up the oldest value,
//! and says how many were lost through `missed`.

use thiserror::Error;

/// A ring could not be built.
///
/// # Examples
///
/// ```
/// use diode::{Error, OneToOne};
///
/// assert_eq!(OneToOne::<u8>::new(0).unwrap_err(), Error::ZeroCapacity);
/// ```
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A capacity (or, for a weighted ring, one of its two limits) was 0.
    #[error("the capacity of a ring must be at least 1, got 0")]
    ZeroCapacity,
    /// A capacity was beyond what can be addressed.
    #[error("the capacity of a ring must be at most {max}, got {capacity}")]
    CapacityTooLarge {
        /// What was asked for, in values.
        capacity: usize,
        /// The largest capacity there is, in values.
        max: u64,
    },
}

/// Far beyond any use, and far below half of all positions of a ring.
const MAX_CAPACITY: u64 = 1 << 32;

impl Error {
    pub(crate) fn check_capacity(capacity: usize) -> Result<usize, Self> {
        match capacity as u64 {
            0 => Err(Self::ZeroCapacity),
            1..=MAX_CAPACITY => Ok(capacity),
            _ => Err(Self::CapacityTooLarge {
                capacity,
                max: MAX_CAPACITY,
            }),
        }
    }
}

/// `try_next` had no value to return.
///
/// # Examples
///
/// ```
/// use diode::{OneToOne, TryNextError};
///
/// let (writer, mut reader) = OneToOne::<u8>::new(8)?.split();
/// assert_eq!(reader.try_next(), Err(TryNextError::Empty));
/// drop(writer);
/// assert_eq!(reader.try_next(), Err(TryNextError::Closed));
/// # Ok::<(), diode::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum TryNextError {
    /// Nothing is stored now; a writer may still set a value.
    #[error("the ring is empty")]
    Empty,
    /// The ring is closed and drained: there will never be another value.
    #[error("the ring is closed and drained")]
    Closed,
}
