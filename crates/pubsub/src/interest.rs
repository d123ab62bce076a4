//! What a subscriber asks for.

use std::collections::HashSet;
use std::hash::Hash;

use smallvec::SmallVec;

use crate::{Path, Segment};

/// The paths of a subscription; nearly always one.
pub(crate) type Paths<K> = SmallVec<[Path<K>; 1]>;

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
    pub(crate) paths: Paths<K>,
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

/// Up to this many paths, every pair is compared. Beyond it hashing keeps the cost linear.
const PAIRWISE: usize = 32;

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
    /// `paths` are different from each other.
    pub(crate) fn of<K: Hash + Eq>(paths: &[Path<K>]) -> Reach {
        let overlapping = match paths.len() {
            0 | 1 => return Reach::One,
            2..=PAIRWISE => paths
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

/// Without a wildcard two paths overlap only if one begins with the other. With one, this may say
/// so too often, which costs publishing a little and nothing else.
fn may_overlap<K: Hash + Eq>(paths: &[Path<K>]) -> bool {
    let known: HashSet<&[Segment<K>], ahash::RandomState> =
        paths.iter().map(Path::segments).collect();
    paths.iter().map(Path::segments).any(|path| {
        path.contains(&Segment::Any) || (0..path.len()).any(|end| known.contains(&path[..end]))
    })
}

/// Drops later paths that equal an earlier one.
pub(crate) fn unique<K: Hash + Eq>(paths: &mut Paths<K>) {
    if paths.len() <= PAIRWISE {
        let mut kept = 0;
        for at in 0..paths.len() {
            if !paths[..kept].contains(&paths[at]) {
                paths.swap(kept, at);
                kept += 1;
            }
        }
        paths.truncate(kept);
        return;
    }
    let mut known = HashSet::with_hasher(ahash::RandomState::new());
    let first: Vec<bool> = paths.iter().map(|path| known.insert(path)).collect();
    let mut first = first.into_iter();
    paths.retain(|_| first.next().unwrap_or(true));
}

#[cfg(test)]
mod tests {
    //! How paths relate, by pairs and by hashes.

    use super::*;

    fn paths(many: usize, special: &[&[Option<u32>]]) -> Paths<u32> {
        let one = |segments: &[Option<u32>]| {
            let segments = segments.iter();
            let segments = segments.map(|key| key.map_or(Segment::Any, Segment::Key));
            Path::try_from(segments.collect::<Vec<_>>()).expect("short")
        };
        let plain = (1000..).take(many).map(|key| one(&[Some(key)]));
        special.iter().map(|path| one(path)).chain(plain).collect()
    }

    #[test]
    fn paths_overlap_if_some_event_matches_two() {
        let disjoint: [&[&[Option<u32>]]; 4] = [
            &[&[Some(1)], &[Some(2)]],
            &[
                &[Some(1), Some(1)],
                &[Some(1), Some(2)],
                &[Some(2), Some(1)],
            ],
            &[&[None, Some(1)], &[None, Some(2), Some(3)]],
            &[&[Some(1), Some(1)], &[Some(2)]],
        ];
        for special in disjoint {
            assert_eq!(
                Reach::of(&paths(0, special)),
                Reach::Disjoint,
                "{special:?}"
            );
        }
        let overlapping: [&[&[Option<u32>]]; 5] = [
            &[&[], &[Some(1)]],
            &[&[None], &[Some(1)]],
            &[&[Some(1)], &[Some(2)], &[Some(1), Some(2), Some(3)]],
            &[&[None, Some(1)], &[Some(1), None]],
            &[&[None, Some(1)], &[Some(7), Some(1), Some(2)]],
        ];
        for special in overlapping {
            assert_eq!(
                Reach::of(&paths(0, special)),
                Reach::Overlapping,
                "{special:?}"
            );
            assert_eq!(
                Reach::of(&paths(100, special)),
                Reach::Overlapping,
                "{special:?}"
            );
        }
        assert_eq!(Reach::of(&paths(0, &[])), Reach::One);
        assert_eq!(Reach::of(&paths(1, &[])), Reach::One);
        assert_eq!(Reach::of(&paths(100, &[])), Reach::Disjoint);
        assert_eq!(
            Reach::of(&paths(100, &[&[Some(1), Some(2)]])),
            Reach::Disjoint
        );
    }

    #[test]
    fn equal_paths_are_dropped_in_place() {
        for many in [0, 3, 100] {
            let special: &[&[Option<u32>]] = &[&[Some(1)], &[None], &[Some(1)], &[], &[None]];
            let mut twice = paths(many, special);
            twice.extend(paths(many, special));
            unique(&mut twice);
            assert_eq!(twice, paths(many, &[&[Some(1)], &[None], &[]]));
        }
    }
}
