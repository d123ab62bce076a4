//! What can be published.

use std::hash::Hash;

use crate::Equivalent;

/// Something that can be published: a sequence of keys, from the most general to the most special.
///
/// The tree asks for keys only as deep as some subscription goes, for the same one again where paths
/// with "any" and with the event's own key both go on. Each answer must stay the same while the event
/// is being published.
///
/// ```
/// use pubsub::Event;
///
/// /// `orders/eu/created` has the keys `orders`, `eu` and `created`.
/// struct Topic(&'static str);
///
/// impl Event<String> for Topic {
///     type Key<'a> = &'a str;
///
///     fn key(&self, depth: usize) -> Option<&str> {
///         self.0.split('/').nth(depth)
///     }
/// }
///
/// assert_eq!(Topic("orders/eu/created").key(1), Some("eu"));
/// assert_eq!(Topic("orders/eu/created").key(3), None);
/// ```
pub trait Event<K> {
    /// The borrowed form of a key; its `Hash` must agree with that of `K` (see [`Equivalent`]).
    type Key<'a>: Hash + Equivalent<K>
    where
        Self: 'a;

    /// The event's own key at `depth` (0 is the first), or `None` if the event ends above it.
    ///
    /// An event that ends here reaches the subscriptions of paths up to this depth; neither a key
    /// nor [`Segment::Any`](crate::Segment::Any) matches beyond its end.
    fn key(&self, depth: usize) -> Option<Self::Key<'_>>;

    /// What chooses a member of a shard group with named members: `Some(h)` picks the member with
    /// index `h mod n`, `None` (the default) picks one at random.
    fn shard_hash(&self) -> Option<u64> {
        None
    }
}

impl<K, E: Event<K> + ?Sized> Event<K> for &E {
    type Key<'a>
        = E::Key<'a>
    where
        Self: 'a;

    #[inline]
    fn key(&self, depth: usize) -> Option<Self::Key<'_>> {
        (**self).key(depth)
    }

    #[inline]
    fn shard_hash(&self) -> Option<u64> {
        (**self).shard_hash()
    }
}
