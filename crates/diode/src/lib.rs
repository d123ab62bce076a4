//! Lossy ring buffers: the writer never blocks, the oldest values are overwritten and counted.

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
