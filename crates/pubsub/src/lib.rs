//! A tree of subscriptions: who gets an event is found by walking an immutable snapshot, so that
//! publishing never waits.
//!
//! # The problem
//!
//! A service hands events to many subscribers who want different parts of the stream. There are a
//! hundred thousand subscriptions and a million events a second, subscribers come and go all the
//! time, and some of them share the work among instances. A map behind a lock makes publishers wait
//! for each other and for every change, copying the map for a change costs more with every
//! subscription, and neither knows wildcards or groups.
//!
//! # In ten lines
//!
//! ```
//! use pubsub::{Event, Interest, Path, PubSub};
//!
//! struct Topic(&'static str);
//!
//! impl Event<String> for Topic {
//!     type Key<'a> = &'a str;
//!     fn key(&self, depth: usize) -> Option<&str> {
//!         self.0.split('/').nth(depth)
//!     }
//! }
//!
//! let tree = PubSub::<String, &str>::new();
//! let europe = Interest::new([Path::root().any().key("eu")]);
//! let _subscription = tree.subscribe("a subscriber", europe);
//! let published = tree.publish(&Topic("orders/eu/created"), |to| println!("{to} gets it"));
//! assert_eq!(published.delivered, 1);
//! ```
//!
//! # Events, keys, paths
//!
//! An [`Event`] has keys, from the most general to the most special, and lends them while it is
//! published. A subscription has [`Path`]s, made of the same kind of keys and of "any". It gets an
//! event if one of its paths, from the root to where it ends, fits the event's keys; what the event
//! has below does not matter. What an event is delivered to, the subscriber `S`, is up to you.
//!
//! With the feature `derive`, `#[derive(Event)]` makes both from a struct or an enum, with typed
//! filters instead of paths by hand.
//!
//! # Groups
//!
//! Subscribers with the same shard id at the same node share: one of them gets each event, at random,
//! or, if they have deterministic names and the event has a hash, always the same one. See
//! [`Interest`].
//!
//! # What is guaranteed
//!
//! - **Publishing never waits**, neither for other publishers nor for changes, and allocates nothing.
//!   Publishers share nothing that they write, so two of them are twice as fast as one.
//! - **A change costs O(log n)**: it copies what lies on its paths and shares the rest.
//! - **One event, one version.** A publish (a whole batch as well) sees the tree as it was at one
//!   moment. A subscription with several paths appears and disappears as one.
//! - **Once.** A subscriber gets an event once, however many of its paths match.
//! - **Keys are compared, not only hashed.** A hash only finds the place, and each tree has hash keys
//!   of its own.
//! - **A panic of one subscriber's callback costs nobody else the event**; it is counted.
//! - **Callbacks may use the tree**: subscribe, unsubscribe, publish. So may the drop of a subscriber.
//! - What is unsubscribed is gone: the last publish that still sees it frees it.
//!
//! # One by one or in batches
//!
//! [`PubSub::publish`] takes one event. Where events come many at a time, a [`Publisher`] takes a
//! batch, and calls each subscriber once for all of its events; with a hundred subscribers to
//! everything that is five times faster, and whoever fills a queue in the callback saves as much
//! again.
//!
//! # Code map
//!
//! From the outside in: `tree` is what users hold, `publish` and `batch` are the two walks, `node`
//! is a place in the tree and `members` what hangs there. They are made of persistent parts: `trie`
//! (the children by key) and `ordered` (a list). `snapshot` is the cell that holds the current
//! version, and the only module that knows `arc-swap`.
#![forbid(unsafe_code)]

mod batch;
mod event;
mod interest;
mod key;
mod members;
mod node;
mod ordered;
mod path;
mod publish;
mod random;
mod seen;
mod selection;
mod snapshot;
mod stable_hash;
mod sync;
mod table;
mod tree;
mod trie;

pub use batch::Publisher;
pub use event::Event;
pub use interest::Interest;
pub use key::Equivalent;
pub use path::{Path, Segment, TooDeep};
pub use publish::Published;
pub use selection::{Ranges, Selection};
pub use stable_hash::stable_hash;
pub use tree::{Builder, PubSub, Subscription};

/// Makes a struct or an enum publishable, with typed filters; see the documentation of
/// `pubsub-derive`.
#[cfg(feature = "derive")]
pub use pubsub_derive::Event;

/// What derived code calls. Not for others.
#[doc(hidden)]
pub mod __private {
    use crate::{Path, Segment};

    /// The path with these keys, any key where there is none, down to the last one there is.
    pub fn path<K>(keys: impl IntoIterator<Item = Option<K>>) -> Path<K> {
        let keys = keys.into_iter();
        let mut segments: Vec<_> = keys
            .map(|key| key.map_or(Segment::Any, Segment::Key))
            .collect();
        while let Some(Segment::Any) = segments.last() {
            segments.pop();
        }
        Path::try_from(segments).expect("derive refuses too many keys")
    }
}

/// The examples of the README run, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
