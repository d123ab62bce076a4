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
pub use tree::{Builder, PubSub, Subscription};
