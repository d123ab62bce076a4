//! What an envelope is routed by, owned by the subscriber tree or borrowed from a message.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use crate::message::text;
use crate::scan::{Kind, Span};

/// What a v2 selector fixes, one per level of the tree; cheap to clone.
///
/// ```
/// use loggregator::{Key, Kind};
/// use pubsub::Path;
///
/// // The counters named "requests" of the source "gorouter".
/// let path: Path<Key> = Path::root()
///     .key(Key::source_id("gorouter"))
///     .key(Kind::Counter)
///     .key(Key::counter_name("requests"));
/// assert_eq!(path.depth(), 3);
///
/// // Names of a gauge are a set.
/// assert_eq!(Key::metric_names(["cpu", "memory"]), Key::metric_names(["memory", "cpu"]));
/// assert_eq!(Key::metric_names(["cpu", "cpu"]), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Key {
    /// First level: a source id.
    SourceId(Arc<str>),
    /// Second level: a kind.
    Kind(Kind),
    /// Third level: the name of a counter.
    CounterName(Arc<str>),
    /// Third level: all metric names of a gauge, sorted and distinct. Made by
    /// [`Key::metric_names`].
    MetricNames(NameSet),
}

/// A set of metric names.
///
/// ```
/// use loggregator::Key;
///
/// let Some(Key::MetricNames(names)) = Key::metric_names(["memory", "cpu"]) else { unreachable!() };
/// assert!(names.iter().eq(["cpu", "memory"]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameSet(Arc<[Box<str>]>);

impl NameSet {
    /// The names, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(|name| &**name)
    }
}

impl Key {
    /// The key of a source id.
    pub fn source_id(source_id: &str) -> Self {
        Key::SourceId(source_id.into())
    }

    /// The key of a counter's name.
    pub fn counter_name(name: &str) -> Self {
        Key::CounterName(name.into())
    }

    /// The key of a gauge that has exactly these metrics, in any order; `None` if a name comes
    /// twice, as no gauge has that.
    pub fn metric_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut names: Vec<Box<str>> = names.into_iter().map(Box::from).collect();
        names.sort_unstable();
        let distinct = names.windows(2).all(|pair| pair[0] != pair[1]);
        distinct.then(|| Key::MetricNames(NameSet(names.into())))
    }
}

impl From<Kind> for Key {
    fn from(kind: Kind) -> Self {
        Key::Kind(kind)
    }
}

/// Must agree with the hash of [`KeyRef`].
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Key::SourceId(name) | Key::CounterName(name) => state.write(name.as_bytes()),
            Key::Kind(kind) => kind.hash(state),
            Key::MetricNames(names) => hash_set(names.0.iter().map(|name| name.as_bytes()), state),
        }
    }
}

/// The borrowed form of a [`Key`]: what an envelope has at one level.
///
/// ```
/// use loggregator::{KeyRef, Kind, Limits, Message};
/// use pubsub::Event;
///
/// let message = Message::parse_envelope(&[0x12, 1, b's', 0x22, 0], Limits::default())?;
/// let facts = message.facts(0);
/// assert!(matches!(facts.key(0), Some(KeyRef::SourceId(b"s"))));
/// assert!(matches!(facts.key(1), Some(KeyRef::Kind(Kind::Log))));
/// assert!(facts.key(2).is_none());
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum KeyRef<'a> {
    /// First level: the source id.
    SourceId(&'a [u8]),
    /// Second level: the kind.
    Kind(Kind),
    /// Third level: the name of a counter.
    CounterName(&'a [u8]),
    /// Third level: the metric names of a gauge.
    MetricNames(MetricNames<'a>),
}

impl Hash for KeyRef<'_> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            KeyRef::SourceId(name) | KeyRef::CounterName(name) => state.write(name),
            KeyRef::Kind(kind) => kind.hash(state),
            KeyRef::MetricNames(names) => hash_set(names.iter(), state),
        }
    }
}

impl KeyRef<'_> {
    /// Whether this is the borrowed form of `key`.
    #[inline]
    pub(crate) fn is(&self, key: &Key) -> bool {
        match (self, key) {
            (KeyRef::SourceId(ours), Key::SourceId(theirs))
            | (KeyRef::CounterName(ours), Key::CounterName(theirs)) => *ours == theirs.as_bytes(),
            (KeyRef::Kind(ours), Key::Kind(theirs)) => ours == theirs,
            (KeyRef::MetricNames(ours), Key::MetricNames(theirs)) => ours.are(theirs),
            _ => false,
        }
    }
}

/// The sum of the names' hashes: the same in whatever order they come.
fn hash_set<'a, H: Hasher>(names: impl Iterator<Item = &'a [u8]>, state: &mut H) {
    /// Hashes names with keys of this process, so that nobody can pick names that collide.
    static NAMES: LazyLock<ahash::RandomState> = LazyLock::new(ahash::RandomState::new);
    let sum = names.fold(0_u64, |sum, name| sum.wrapping_add(NAMES.hash_one(name)));
    state.write_u64(sum);
}

/// The distinct metric names of one envelope, in no particular order.
///
/// ```
/// use loggregator::{Limits, Message};
///
/// // A gauge whose metrics "b", "a", "b" have no values.
/// let gauge = [0x32, 15, 0x0A, 3, 0x0A, 1, b'b', 0x0A, 3, 0x0A, 1, b'a', 0x0A, 3, 0x0A, 1, b'b'];
/// let message = Message::parse_envelope(&gauge, Limits::default())?;
/// let names = message.facts(0).metric_names();
/// assert_eq!(names.len(), 2);
/// assert!(names.iter().any(|name| name == b"a"));
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct MetricNames<'a> {
    bytes: &'a [u8],
    names: &'a [Span],
}

impl<'a> MetricNames<'a> {
    pub(crate) fn new(bytes: &'a [u8], names: &'a [Span]) -> Self {
        MetricNames { bytes, names }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The names; each is UTF-8.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone {
        let bytes = self.bytes;
        self.names.iter().map(move |name| name.of_bytes(bytes))
    }

    /// Whether these are exactly the names of `set`. Both are free of duplicates.
    fn are(&self, set: &NameSet) -> bool {
        self.len() == set.0.len()
            && self.iter().all(|name| {
                set.0
                    .binary_search_by(|own| own.as_bytes().cmp(name))
                    .is_ok()
            })
    }
}

impl std::fmt::Debug for MetricNames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(text)).finish()
    }
}
