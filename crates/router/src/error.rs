//! What can go wrong when a pipeline is built or written to.

use std::{fmt, io};

use loggregator::Message;

/// A pipeline that can't be built or started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A ring was given no room at all.
    #[error("the {ring} ring has no room: its limits must be at least 1 envelope and 1 byte")]
    NoRoom {
        /// `ingress` or `subscriber`.
        ring: &'static str,
    },
    /// The fan-out stage can't be built with these options, or its threads could not be started.
    #[error("fan-out stage: {0}")]
    Fanout(#[from] fanout::Error),
    /// The repeater's thread could not be started.
    #[error("can't start the repeater's thread: {0}")]
    Thread(#[source] io::Error),
}

/// The pipeline has stopped; what was sent comes back untouched.
///
/// # Examples
///
/// ```
/// assert_eq!(router::Stopped("a message").to_string(), "the router has stopped");
/// ```
#[derive(thiserror::Error)]
#[error("the router has stopped")]
pub struct Stopped<T = Message>(pub T);

// by hand: the payload of somebody's logs has no place in a debug print
impl<T> fmt::Debug for Stopped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopped").finish_non_exhaustive()
    }
}
