//! What a subscriber asks for.

use std::collections::HashSet;
use std::hash::Hash;

use crate::{Path, Segment};

/// What a subscriber wants: paths, and optionally to share the work with others.
///
/// ```
/// use pubsub::{Interest, Path};
///
/// let interest = Interest::new([Path::<String>::root().key("orders")])
///     .shard("billing")  // one member of the group "billing" gets each order
///     .name("billing-1"); // and events with a shard hash go to a member chosen by it
/// assert_eq!(interest.paths().len(), 1);
/// assert_eq!(interest.shard_id(), b"billing");
/// assert_eq!(interest.deterministic_name(), b"billing-1");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interest<K> {
    pub(crate) paths: Vec<Path<K>>,
    pub(crate) shard_id: Box<[u8]>,
    pub(crate) name: Box<[u8]>,
}

impl<K> Interest<K> {
    /// Interest in every event that matches at least one of `paths`.
    ///
    /// Equal paths count once. No paths at all is fine: such a subscription exists and stays
    /// silent.
    pub fn new(paths: impl IntoIterator<Item = Path<K>>) -> Self {
        Interest {
            paths: paths.into_iter().collect(),
            shard_id: Box::default(),
            name: Box::default(),
        }
    }

    /// Joins the group `shard_id` at each node that a path leads to: of all members of a group
    /// at one node, one gets each event. An empty id means no group.
    #[must_use]
    pub fn shard(mut self, shard_id: impl AsRef<[u8]>) -> Self {
        self.shard_id = shard_id.as_ref().into();
        self
    }

    /// Gives the member a deterministic name. It orders the members of a group (as byte strings;
    /// unnamed ones first, equal ones as they joined), and as long as one member has a name, an
    /// event with a [`shard_hash`](crate::Event::shard_hash) goes to the member with index
    /// `hash mod n`. Without a shard id the name has no effect.
    #[must_use]
    pub fn name(mut self, name: impl AsRef<[u8]>) -> Self {
        self.name = name.as_ref().into();
        self
    }

    /// The paths, as given.
    pub fn paths(&self) -> &[Path<K>] {
        &self.paths
    }

    /// The shard id; empty if the subscription shares with nobody.
    pub fn shard_id(&self) -> &[u8] {
        &self.shard_id
    }

    /// The deterministic name; empty if it has none.
    pub fn deterministic_name(&self) -> &[u8] {
        &self.name
    }
}

/// How the paths of one subscription relate. Known once at subscribe, it spares publishing to
/// look for duplicates of what can't be delivered twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// At most one path.
    One,
    /// Several paths, and no event can match two of them.
    Disjoint,
    /// Some event may match more than one path.
    Overlapping,
}

impl Reach {
    /// Up to this many paths every pair is compared; beyond it an approximation that may say
    /// `Overlapping` too often keeps the cost linear.
    const PAIRWISE: usize = 32;

    /// `paths` are different from each other.
    pub(crate) fn of<K: Hash + Eq>(paths: &[Path<K>]) -> Reach {
        let overlapping = match paths.len() {
            0 | 1 => return Reach::One,
            2..=Self::PAIRWISE => paths
                .iter()
                .enumerate()
                .any(|(i, a)| paths[..i].iter().any(|b| a.overlaps(b))),
            _ => may_overlap(paths),
        };
        if overlapping {
            Reach::Overlapping
        } else {
            Reach::Disjoint
        }
    }
}

/// Without a wildcard two paths overlap only if one begins with the other.
fn may_overlap<K: Hash + Eq>(paths: &[Path<K>]) -> bool {
    let known: HashSet<&[Segment<K>], ahash::RandomState> =
        paths.iter().map(Path::segments).collect();
    paths.iter().map(Path::segments).any(|path| {
        path.contains(&Segment::Any) || (0..path.len()).any(|end| known.contains(&path[..end]))
    })
}

/// Drops later paths that equal an earlier one.
pub(crate) fn unique<K: Hash + Eq>(paths: Vec<Path<K>>) -> Vec<Path<K>> {
    if paths.len() < 2 {
        return paths;
    }
    let mut known = HashSet::with_hasher(ahash::RandomState::new());
    let first: Vec<bool> = paths.iter().map(|path| known.insert(path)).collect();
    drop(known);
    let mut first = first.into_iter();
    let mut paths = paths;
    paths.retain(|_| first.next().unwrap_or(true));
    paths
}
