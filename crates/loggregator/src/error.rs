//! What can be wrong with received bytes. An error names the envelope and the byte, so that the
//! producer's side can be found and mended.

use thiserror::Error;

/// Why a received message was refused.
///
/// ```
/// use loggregator::{Error, Flaw, Limits, Message};
///
/// // One envelope that claims a source id of 5 bytes and brings only one.
/// let error = Message::parse(&[0x0A, 0x03, 0x12, 0x05, b'a'], Limits::default()).unwrap_err();
/// assert!(matches!(error, Error::Malformed { envelope: 0, flaw: Flaw::Truncated, .. }));
/// assert_eq!(error.to_string(), "envelope 0: data ends within a field, at byte 3");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The message is larger than [`Limits::bytes`](crate::Limits::bytes) allows.
    #[error("message of {len} bytes is over the limit of {limit} bytes")]
    TooLarge {
        /// Length of the message in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },

    /// The bytes are not a well-formed message.
    #[error("envelope {envelope}: {flaw}, at byte {offset}")]
    Malformed {
        /// Index in the message of the envelope with the flaw; for a flaw of the message itself
        /// the number of whole envelopes before it.
        envelope: usize,
        /// Offset in the message near which the flaw was found.
        offset: usize,
        /// What is wrong there.
        flaw: Flaw,
    },

    /// A v1 envelope lacks a field that it must have.
    #[error("v1 envelope without {field}, which is required")]
    Missing {
        /// The field, as `Message.field`.
        field: &'static str,
    },
}

/// What is wrong with the bytes at one place.
///
/// ```
/// assert_eq!(loggregator::Flaw::Utf8("source_id").to_string(), "source_id is not UTF-8");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Flaw {
    /// A field, a length or a number goes beyond the end of its message.
    #[error("data ends within a field")]
    Truncated,
    /// A number of more than 64 bits.
    #[error("varint of more than 64 bits")]
    Varint,
    /// Field number 0, or one above 2^29 - 1.
    #[error("field number out of range")]
    FieldNumber,
    /// Wire types 6 and 7 don't exist.
    #[error("wire type {0} does not exist")]
    WireType(u8),
    /// An end-group without its start, or the end of another group.
    #[error("end of a group that is not open")]
    EndGroup,
    /// Nested deeper than [`MAX_DEPTH`](crate::MAX_DEPTH).
    #[error("nested deeper than {max} levels", max = crate::MAX_DEPTH)]
    Depth,
    /// A text field, named here, that isn't UTF-8.
    #[error("{0} is not UTF-8")]
    Utf8(&'static str),
}

/// A flaw and its place; what the inner layers return, small and cheap to pass up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) flaw: Flaw,
    pub(crate) offset: usize,
}
