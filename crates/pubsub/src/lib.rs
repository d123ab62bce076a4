//! A copy-on-write subscriber tree: publishing walks an immutable snapshot and never waits.
#![forbid(unsafe_code)]

mod batch;
mod cow;
mod event;
mod interest;
mod key;
mod node;
mod ordered;
mod path;
mod publish;
mod random;
mod seen;
mod selection;
mod snapshot;
mod stable_hash;
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
