//! What Loggregator speaks on the wire.
#![forbid(unsafe_code)]

/// The v2 protobuf messages as plain structs, for clients and tests. The router itself never
/// decodes an envelope into them.
#[allow(missing_docs, reason = "generated from the .proto files, which carry the comments")]
pub mod v2 {
    include!(concat!(env!("OUT_DIR"), "/loggregator.v2.rs"));
}
