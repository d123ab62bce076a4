//! Where a subscription hangs in the tree.

use std::error::Error;
use std::fmt;

/// One step of a [`Path`].
///
/// ```
/// use pubsub::{Path, Segment};
///
/// let path = Path::<String>::root().any().key("created");
/// assert_eq!(path.segments(), [Segment::Any, Segment::Key("created".into())]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment<K> {
    /// Matches whatever key an event has at this depth (but it must have one).
    Any,
    /// Matches this key only.
    Key(K),
}

/// The way from the root to a node of the tree: it matches every event below that node.
///
/// A path may end at any depth. [`Path::root`] matches all events, `root().key(a)` every event
/// whose first key is `a`, and so on.
///
/// ```
/// use pubsub::Path;
///
/// let everything = Path::<String>::root();
/// let europe = Path::<String>::root().any().key("eu");
/// assert_eq!(everything.depth(), 0);
/// assert_eq!(europe.depth(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path<K>(Vec<Segment<K>>);

impl<K> Path<K> {
    /// The deepest path there can be: 255 segments.
    pub const MAX_DEPTH: usize = 255;

    /// The path that matches every event.
    pub fn root() -> Self {
        Path(Vec::new())
    }

    /// Goes one deeper, to a key.
    ///
    /// # Panics
    ///
    /// If the path has [`Path::MAX_DEPTH`] segments already. Paths whose length comes from outside
    /// are made with [`Path::try_from`], which gives an error instead.
    #[must_use]
    pub fn key(self, key: impl Into<K>) -> Self {
        self.then(Segment::Key(key.into()))
    }

    /// Goes one deeper, to any key.
    ///
    /// # Panics
    ///
    /// As [`Path::key`].
    #[must_use]
    pub fn any(self) -> Self {
        self.then(Segment::Any)
    }

    fn then(mut self, segment: Segment<K>) -> Self {
        assert!(
            self.0.len() < Self::MAX_DEPTH,
            "a path has at most {} segments",
            Self::MAX_DEPTH
        );
        if self.0.len() == self.0.capacity() {
            // Most paths are short and live long: 1, 2, 4 segments instead of 4 at once.
            self.0.reserve_exact(self.0.len().max(1));
        }
        self.0.push(segment);
        self
    }

    /// The segments from the root downwards.
    pub fn segments(&self) -> &[Segment<K>] {
        &self.0
    }

    /// How many segments the path has.
    pub fn depth(&self) -> usize {
        self.0.len()
    }
}

impl<K: Eq> Path<K> {
    /// Whether some event can match both paths.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let mut pairs = self.0.iter().zip(&other.0);
        pairs.all(|(a, b)| match (a, b) {
            (Segment::Key(a), Segment::Key(b)) => a == b,
            _ => true,
        })
    }
}

impl<K> Default for Path<K> {
    fn default() -> Self {
        Path::root()
    }
}

/// For paths whose length comes from outside.
///
/// ```
/// use pubsub::{Path, Segment};
///
/// let path = Path::try_from(vec![Segment::Key(7_u32), Segment::Any])?;
/// assert_eq!(path.depth(), 2);
///
/// let error = Path::try_from(vec![Segment::Key(7_u32); 300]).unwrap_err();
/// assert_eq!(error.to_string(), "path has 300 segments, at most 255 are possible");
/// # Ok::<(), pubsub::TooDeep>(())
/// ```
impl<K> TryFrom<Vec<Segment<K>>> for Path<K> {
    type Error = TooDeep;

    fn try_from(segments: Vec<Segment<K>>) -> Result<Self, TooDeep> {
        if segments.len() > Self::MAX_DEPTH {
            return Err(TooDeep {
                depth: segments.len(),
            });
        }
        Ok(Path(segments))
    }
}

/// A path has more segments than [`Path::MAX_DEPTH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep {
    depth: usize,
}

impl TooDeep {
    /// How many segments the refused path had.
    ///
    /// ```
    /// use pubsub::{Path, Segment};
    ///
    /// let error = Path::try_from(vec![Segment::<u32>::Any; 256]).unwrap_err();
    /// assert_eq!(error.depth(), 256);
    /// ```
    pub fn depth(&self) -> usize {
        self.depth
    }
}

impl fmt::Display for TooDeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "path has {} segments, at most {} are possible",
            self.depth,
            Path::<()>::MAX_DEPTH
        )
    }
}

impl Error for TooDeep {}
