//! Which events of a batch a subscriber gets.

use std::fmt;
use std::ops::Range;

/// Events per word.
pub(crate) const WORD: usize = u64::BITS as usize;

/// The events of a batch that are for one subscriber, never none.
///
/// A set of indices into the batch, one bit for each. Two selections of one batch are equal (and
/// hash alike) if they select the same events, so work done for one subscriber can be reused for
/// the next with an equal one; most subscribers of a node have.
///
/// ```
/// use pubsub::{Event, Interest, Path, PubSub};
///
/// struct From(&'static str);
/// impl Event<String> for From {
///     type Key<'a> = &'a str;
///     fn key(&self, depth: usize) -> Option<&str> {
///         (depth == 0).then_some(self.0)
///     }
/// }
///
/// let tree = PubSub::<String, ()>::new();
/// let _subscription = tree.subscribe((), Interest::new([Path::root().key("a")]));
/// let batch = [From("a"), From("b"), From("a"), From("a")];
/// let published = tree.publisher().publish_batch(batch.iter(), |_, selection| {
///     assert_eq!((selection.count(), selection.len()), (3, 4));
///     assert!(selection.contains(0) && !selection.contains(1));
///     assert_eq!(selection.ranges().collect::<Vec<_>>(), [0..1, 2..4]);
/// });
/// // What panics in the callback is caught and counted.
/// assert_eq!((published.delivered, published.panicked), (1, 0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Selection<'a> {
    /// Events in the batch.
    len: usize,
    /// Index of the event that the first bit stands for, a multiple of 64.
    start: usize,
    words: &'a [u64],
}

impl<'a> Selection<'a> {
    pub(crate) fn new(len: usize, start: usize, words: &'a [u64]) -> Self {
        Selection { len, start, words }
    }

    /// How many events the whole batch has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is selected. A subscriber never gets such a selection.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many events are selected.
    pub fn count(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Whether all events of the batch are selected.
    pub fn is_all(&self) -> bool {
        self.count() == self.len
    }

    /// Whether the event with this index is selected.
    pub fn contains(&self, index: usize) -> bool {
        let Some(at) = index.checked_sub(self.start) else {
            return false;
        };
        let word = self.words.get(at / WORD);
        word.is_some_and(|word| word >> (at % WORD) & 1 == 1)
    }

    /// The selected indices in order, consecutive ones as one range.
    pub fn ranges(&self) -> Ranges<'a> {
        Ranges {
            start: self.start,
            words: self.words,
            at: 0,
        }
    }

    /// The selected indices in order.
    pub fn indices(&self) -> impl Iterator<Item = usize> + 'a {
        self.ranges().flatten()
    }
}

impl fmt::Debug for Selection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Selection of {}: ", self.len)?;
        f.debug_list().entries(self.ranges()).finish()
    }
}

/// Iterator over the ranges of a [`Selection`]; see [`Selection::ranges`].
///
/// ```
/// # use pubsub::{Event, Interest, Path, PubSub};
/// # struct E;
/// # impl Event<u32> for E {
/// #     type Key<'a> = u32;
/// #     fn key(&self, _: usize) -> Option<u32> { None }
/// # }
/// # let tree = PubSub::<u32, ()>::new();
/// # let _subscription = tree.subscribe((), Interest::new([Path::root()]));
/// let published = tree.publisher().publish_batch([E, E, E].iter(), |_, selection| {
///     let mut ranges = selection.ranges();
///     assert_eq!(ranges.next(), Some(0..3));
///     assert_eq!(ranges.next(), None);
/// });
/// assert_eq!(published.panicked, 0);
/// ```
#[derive(Clone, Debug)]
pub struct Ranges<'a> {
    start: usize,
    words: &'a [u64],
    /// The next bit to look at.
    at: usize,
}

impl Ranges<'_> {
    /// The first bit from `at` on that is `set`, or the end.
    fn next_bit(&self, at: usize, set: bool) -> usize {
        let flip = if set { 0 } else { u64::MAX };
        let mut mask = u64::MAX << (at % WORD);
        for (index, word) in self.words.iter().enumerate().skip(at / WORD) {
            let found = (word ^ flip) & mask;
            if found != 0 {
                return index * WORD + found.trailing_zeros() as usize;
            }
            mask = u64::MAX;
        }
        self.words.len() * WORD
    }
}

impl Iterator for Ranges<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let from = self.next_bit(self.at, true);
        if from == self.words.len() * WORD {
            self.at = from;
            return None;
        }
        let to = self.next_bit(from, false);
        self.at = to;
        Some(self.start + from..self.start + to)
    }
}
