//! The v1 API: what its gRPC layer carries, and v1 envelopes.
//!
//! v1 envelopes are proto2 messages with rules of their own, all of which producers and consumers
//! can observe: required fields must be there, in every message that is; strings need not be UTF-8;
//! enums are open; unknown fields are kept. So payloads are forwarded as the bytes they came as, and
//! [`Envelope`] is a view of them that is read and written by hand.

mod events;
mod payload;

pub use events::{
    ContainerMetric, CounterEvent, Envelope, Error, EventType, HttpStartStop, LogMessage,
    MessageType, Method, PeerType, Tag, Uuid, ValueMetric,
};
pub(crate) use payload::SYSTEM;
pub use payload::{Key, KeyRef, Payload, Pushed, Type, subscription_to_interest};

/// The messages of the gRPC layer as plain structs.
#[allow(
    missing_docs,
    reason = "generated from the .proto file, which carries the comments"
)]
pub mod plumbing {
    include!(concat!(env!("OUT_DIR"), "/plumbing.rs"));
}

/// Full path of the method by which producers push v1 envelopes.
pub const PUSHER: &str = "/plumbing.DopplerIngestor/Pusher";
/// Full path of the method that streams single v1 envelopes to a consumer.
pub const SUBSCRIBE: &str = "/plumbing.Doppler/Subscribe";
/// Full path of the method that streams batches of v1 envelopes to a consumer.
pub const BATCH_SUBSCRIBE: &str = "/plumbing.Doppler/BatchSubscribe";
