//! What Loggregator speaks on the wire, for a router that never decodes it.
//!
//! A router passes envelopes on; it needs to know of each only whether it is well formed and where
//! it wants to go. So a received `EnvelopeBatch` is not decoded into structs: [`Message::parse`]
//! walks its bytes once, copies them once, and notes for each envelope the source id, the kind and
//! the metric names. [`Run`]s of consecutive envelopes of it go through the router, are split and
//! joined, and become new batches by laying their bytes one after the other.
//!
//! ```
//! use loggregator::{Limits, Message, selectors_to_interest, v2};
//! use prost::Message as _;
//! use pubsub::PubSub;
//!
//! // A consumer subscribes to everything that "app" logs.
//! let tree = PubSub::new();
//! let request = v2::EgressBatchRequest {
//!     selectors: vec![v2::Selector {
//!         source_id: "app".into(),
//!         message: Some(v2::selector::Message::Log(v2::LogSelector {})),
//!     }],
//!     ..Default::default()
//! };
//! let subscription = tree.subscribe("consumer", selectors_to_interest(&request));
//!
//! // A producer sends a batch.
//! let log = v2::envelope::Message::Log(v2::Log { payload: b"hello".to_vec(), r#type: 0 });
//! let envelope = v2::Envelope { source_id: "app".into(), message: Some(log), ..Default::default() };
//! let received = v2::EnvelopeBatch { batch: vec![envelope] }.encode_to_vec();
//!
//! let message = Message::parse(&received, Limits::default())?;
//! let mut to_send = Vec::new();
//! for (index, event) in message.whole().events().enumerate() {
//!     tree.publish(&event, |_| message.run(index..index + 1).append_to(&mut to_send));
//! }
//! assert_eq!(to_send, received);
//! # Ok::<(), loggregator::Error>(())
//! ```
//!
//! # What is well formed
//!
//! Exactly what a protobuf decoder that knows the schema accepts:
//!
//! - keys, numbers and lengths are complete; no field number 0, no wire types 6 and 7, no stray
//!   ends of groups; nothing nested deeper than [`MAX_DEPTH`];
//! - every text field is UTF-8: source and instance id, keys and values of both tag maps, names,
//!   units, titles, bodies (a log's payload is bytes, not text);
//! - unknown fields are fine and stay in the bytes; a known field number with an unexpected wire
//!   type is an unknown field;
//! - where a field comes twice the last one counts, and of several kinds the last one; the same
//!   kind twice is one merged message.
//!
//! One envelope that isn't well formed refuses the whole message: it is the unit that the producer
//! sent.
#![forbid(unsafe_code)]

mod crc64;
mod error;
mod keys;
mod message;
mod route;
mod run;
mod scan;
mod schema;
mod wire;

pub mod convert;
pub mod v1;

pub use error::{Error, Flaw};
pub use keys::{Key, KeyRef, MetricNames, NameSet};
pub use message::{Facts, Limits, Message};
pub use route::{selector_to_path, selectors_to_interest};
pub use run::Run;
pub use scan::Kind;
pub use schema::Text;
pub use wire::MAX_DEPTH;

/// The v2 protobuf messages as plain structs, for clients and tests. The router itself never
/// decodes an envelope into them.
#[allow(
    missing_docs,
    reason = "generated from the .proto files, which carry the comments"
)]
pub mod v2 {
    include!(concat!(env!("OUT_DIR"), "/loggregator.v2.rs"));

    /// Full path of the method by which producers push single envelopes.
    pub const INGRESS_SENDER: &str = "/loggregator.v2.Ingress/Sender";
    /// Full path of the method by which agents push batches.
    pub const INGRESS_BATCH_SENDER: &str = "/loggregator.v2.Ingress/BatchSender";
    /// Full path of the method that takes one batch per call.
    pub const INGRESS_SEND: &str = "/loggregator.v2.Ingress/Send";
    /// Full path of the method that streams single envelopes to a consumer.
    pub const EGRESS_RECEIVER: &str = "/loggregator.v2.Egress/Receiver";
    /// Full path of the method that streams batches to a consumer.
    pub const EGRESS_BATCHED_RECEIVER: &str = "/loggregator.v2.Egress/BatchedReceiver";
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
