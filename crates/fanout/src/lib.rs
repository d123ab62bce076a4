//! A worker stage.
#![forbid(unsafe_code)]

mod callback;
mod error;
mod policy;
mod queue;
mod writer;

pub use error::{Error, WriteError};
pub use writer::{FanoutWriter, Stats};
