//! Where v2 envelopes go: envelopes as events of the subscriber tree, selectors as its paths.
//!
//! The tree has three levels. A selector of a source, a counter and a name is the path source,
//! counter, name; without a source the first segment matches any; without a name the path ends at
//! the kind. So an envelope meets the selectors of any source and of its own, of its kind, with any
//! name and with its own, which are the four nodes where the reference looks (two for logs, timers
//! and events, which have no name).

use pubsub::{Equivalent, Event, Interest, Path};

use crate::crc64;
use crate::keys::{Key, KeyRef};
use crate::message::Facts;
use crate::scan::Kind;
use crate::v2;
use v2::selector::Message as SelectorKind;

impl Equivalent<Key> for KeyRef<'_> {
    #[inline]
    fn equivalent(&self, key: &Key) -> bool {
        self.is(key)
    }
}

impl Event<Key> for Facts<'_> {
    type Key<'a>
        = KeyRef<'a>
    where
        Self: 'a;

    /// Source id, kind, and the name of a counter or the names of a gauge. An envelope without a
    /// known kind has no keys at all: it matches no selector.
    #[inline]
    fn key(&self, depth: usize) -> Option<KeyRef<'_>> {
        let kind = self.kind()?;
        match (depth, kind) {
            (0, _) => Some(KeyRef::SourceId(self.source_id_bytes())),
            (1, _) => Some(KeyRef::Kind(kind)),
            (2, Kind::Counter) => self.metric_names().iter().next().map(KeyRef::CounterName),
            (2, Kind::Gauge) => Some(KeyRef::MetricNames(self.metric_names())),
            _ => None,
        }
    }

    /// The CRC-64 of a counter's name, or the wrapping sum over a gauge's names (0 without any), so
    /// that all routers, the reference included, send a metric to the same-named consumer. The
    /// other kinds have none.
    fn shard_hash(&self) -> Option<u64> {
        let names = match self.kind()? {
            Kind::Counter | Kind::Gauge => self.metric_names(),
            Kind::Log | Kind::Timer | Kind::Event => return None,
        };
        Some(
            names
                .iter()
                .fold(0, |sum, name| sum.wrapping_add(crc64::checksum(name))),
        )
    }
}

/// What a consumer asks for, as the subscriber tree takes it.
///
/// Selectors that can match nothing are left out: those without a kind, and gauge selectors that
/// list a name twice. Equal selectors count once. Nothing left is fine, such a stream is just
/// silent. `legacy_selector` and `use_preferred_tags` mean nothing to a router.
///
/// ```
/// use loggregator::{selectors_to_interest, v2};
///
/// let request = v2::EgressBatchRequest {
///     shard_id: "archive".into(),
///     selectors: vec![v2::Selector {
///         source_id: "app".into(),
///         message: Some(v2::selector::Message::Log(v2::LogSelector {})),
///     }],
///     ..Default::default()
/// };
/// let interest = selectors_to_interest(&request);
/// assert_eq!(interest.paths().len(), 1);
/// assert_eq!(interest.shard_id(), b"archive");
/// ```
pub fn selectors_to_interest(request: &v2::EgressBatchRequest) -> Interest<Key> {
    Interest::new(request.selectors.iter().filter_map(selector_to_path))
        .shard(&request.shard_id)
        .name(&request.deterministic_name)
}

/// The path of one selector; `None` if it can match nothing.
///
/// ```
/// use loggregator::{selector_to_path, v2};
///
/// let typeless = v2::Selector { source_id: "app".into(), message: None };
/// assert_eq!(selector_to_path(&typeless), None);
/// ```
pub fn selector_to_path(selector: &v2::Selector) -> Option<Path<Key>> {
    let source = match &*selector.source_id {
        "" => Path::root().any(),
        source_id => Path::root().key(Key::source_id(source_id)),
    };
    Some(match selector.message.as_ref()? {
        SelectorKind::Log(_) => source.key(Kind::Log),
        SelectorKind::Timer(_) => source.key(Kind::Timer),
        SelectorKind::Event(_) => source.key(Kind::Event),
        SelectorKind::Counter(counter) => {
            let counters = source.key(Kind::Counter);
            if counter.name.is_empty() {
                counters
            } else {
                counters.key(Key::counter_name(&counter.name))
            }
        }
        SelectorKind::Gauge(gauge) => {
            let gauges = source.key(Kind::Gauge);
            if gauge.names.is_empty() {
                gauges
            } else {
                gauges.key(Key::metric_names(gauge.names.iter().map(|name| &**name))?)
            }
        }
    })
}
