//! Lossy ring buffers: the writer never blocks, the oldest values are overwritten and counted.

mod error;
mod missed;
mod primitives;
mod wait;
pub mod weighted;

pub use error::{Error, TryNextError};
pub use weighted::{Limits, Weigh, Weighted};
