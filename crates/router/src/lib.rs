//! The Loggregator router's pipeline, without a network: a service can embed it as a library.
//!
//! ```text
//! Ingress --set--> ingress ring --> Repeater --> [FanoutWriter] --> PubSub --set--> subscriber ring --> Subscription
//! ```
//!
//! - An [`Ingress`] puts whole messages on the ingress ring. It never waits: when the ring is full
//!   the oldest envelopes are overwritten and counted.
//! - The [`Repeater`] is the ring's single reader. It publishes each run of envelopes itself or,
//!   with [`FanOut`], hands it to a worker. It is one loop with two drivers: a task
//!   ([`Repeater::run`]) or a thread of its own ([`Repeater::spawn_thread`]).
//! - A [`Subscription`] is one subscriber's stream: it gathers what its ring holds into
//!   [`Batch`]es that are bounded by envelopes and by bytes.
//! - [`Router`] is the handle that ties them together: it subscribes, counts and stops.
//!
//! Everything is counted in envelopes, and nothing is lost uncounted: once the pipeline has come
//! to rest, `ingress == published + dropped{ingress}`, and for each subscriber
//! `matched == egress + dropped{egress}`. See [`counters`].
//!
//! # Examples
//!
//! ```
//! use loggregator::{Limits, Message, v2};
//! use router::{Options, Router};
//!
//! let (router, repeater) = Router::new(Options::default())?;
//! let repeater = repeater.spawn_thread()?;
//!
//! let all_logs = v2::Selector {
//!     message: Some(v2::selector::Message::Log(v2::LogSelector {})),
//!     ..Default::default()
//! };
//! let request = v2::EgressBatchRequest { selectors: vec![all_logs], ..Default::default() };
//! let mut subscription = router.subscribe(&request, "an example");
//!
//! // an EnvelopeBatch with one log of source "a", as it comes from the wire
//! let message = Message::parse(b"\x0a\x09\x12\x01a\x22\x04\x0a\x02hi", Limits::default())?;
//! router.ingress().send(message)?;
//!
//! let batch = subscription.next().expect("the router runs");
//! assert_eq!(batch.len(), 1);
//! router.stop();
//! repeater.join();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod counters;
mod describe;
mod error;
mod item;
mod options;
mod pipeline;
mod publish;
mod repeater;
mod subscription;

pub use counters::{Counters, Deliveries, SubscriptionCounters};
pub use error::{Error, Stopped};
pub use options::{EgressLimits, FanOut, Options, Ordering};
pub use pipeline::{Ingress, Router};
pub use repeater::{Repeater, RepeaterThread};
pub use subscription::{Api, Batch, Piece, Subscription, SubscriptionInfo};
