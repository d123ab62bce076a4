//! Runs: handles on consecutive envelopes of a message. They go through the rings in place of
//! single envelopes, and are cut and joined without touching one.

use std::ops::Range;

use bytes::BufMut;

use crate::message::{Facts, Message};

/// Consecutive envelopes of a [`Message`]: a handle of a few words, cheap to clone.
///
/// Its bytes are a serialized `EnvelopeBatch` by themselves; those of several runs, laid one after
/// the other, are one, too.
///
/// ```
/// use loggregator::{Limits, Message};
///
/// let message = Message::parse(&[0x0A, 2, 0x12, 0, 0x0A, 0, 0x0A, 2, 0x42, 0], Limits::default())?;
/// let (first, rest) = message.whole().split_at(1);
/// assert_eq!((first.len(), rest.len()), (1, 2));
///
/// let mut batch = Vec::with_capacity(first.byte_len() + rest.byte_len());
/// rest.append_to(&mut batch);
/// first.append_to(&mut batch);
/// assert_eq!(batch, [0x0A, 0, 0x0A, 2, 0x42, 0, 0x0A, 2, 0x12, 0]);
///
/// assert_eq!(first.try_join(&rest).unwrap().bytes(), message.whole().bytes());
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Clone)]
pub struct Run {
    message: Message,
    start: u32,
    end: u32,
}

impl Run {
    pub(crate) fn new(message: Message, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= message.len(),
            "envelopes {range:?} of {}",
            message.len()
        );
        Run {
            message,
            start: range.start as u32,
            end: range.end as u32,
        }
    }

    /// The message that it is part of, and keeps in memory.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Which envelopes of the message.
    pub fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    /// Number of envelopes.
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Length of [`bytes`](Self::bytes).
    pub fn byte_len(&self) -> usize {
        self.message.span(self.range()).len()
    }

    /// The envelopes as a serialized `EnvelopeBatch`.
    pub fn bytes(&self) -> &[u8] {
        &self.message.bytes()[self.message.span(self.range())]
    }

    /// Appends [`bytes`](Self::bytes): how batches are built. Making room first is the caller's.
    ///
    /// # Panics
    ///
    /// If the buffer has not enough room and can't grow.
    pub fn append_to(&self, buf: &mut impl BufMut) {
        buf.put_slice(self.bytes());
    }

    /// What is known of the envelope at `index`, counted from the start of the run.
    ///
    /// # Panics
    ///
    /// If there is no such envelope.
    pub fn facts(&self, index: usize) -> Facts<'_> {
        assert!(index < self.len(), "envelope {index} of {}", self.len());
        self.message.facts(self.start as usize + index)
    }

    /// What is known of each envelope, in order: the events to publish.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Facts<'_>> + Clone {
        self.range().map(|index| self.message.facts(index))
    }

    /// A part of the run, without copying; `range` counts from its start.
    ///
    /// # Panics
    ///
    /// If the range ends behind the last envelope or before it starts.
    pub fn slice(&self, range: Range<usize>) -> Run {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "envelopes {range:?} of {}",
            self.len()
        );
        let start = self.start as usize;
        Run::new(self.message.clone(), start + range.start..start + range.end)
    }

    /// A compact copy of some envelopes, counted from the start of the run; see
    /// [`Message::select`].
    ///
    /// # Panics
    ///
    /// If a range ends behind the last envelope of the message or before it starts.
    pub fn select<I>(&self, ranges: I) -> Run
    where
        I: IntoIterator<Item = Range<usize>>,
        I::IntoIter: Clone,
    {
        let start = self.start as usize;
        self.message.select(
            ranges
                .into_iter()
                .map(|range| start + range.start..start + range.end),
        )
    }

    /// The first `n` envelopes and the rest. With more than there are, the rest is empty.
    pub fn split_at(self, n: usize) -> (Run, Run) {
        let middle = self.start + n.min(self.len()) as u32;
        let first = Run {
            message: self.message.clone(),
            end: middle,
            ..self
        };
        (
            first,
            Run {
                start: middle,
                ..self
            },
        )
    }

    /// How many envelopes from the start are at most `envelopes` and take at most `bytes`, but at
    /// least one, if there is any: an envelope above the limit goes alone.
    pub fn fitting(&self, envelopes: usize, bytes: usize) -> usize {
        let limit = self.start as usize + envelopes.min(self.len());
        let fitting = self.message.fitting(self.start as usize, limit, bytes) - self.start as usize;
        fitting.max(1).min(self.len())
    }

    /// As many envelopes as [`fitting`](Self::fitting) says, and the rest.
    pub fn split_fitting(self, envelopes: usize, bytes: usize) -> (Run, Run) {
        let n = self.fitting(envelopes, bytes);
        self.split_at(n)
    }

    /// The run cut into parts of at most `envelopes` and `bytes`, an envelope above the limit alone.
    ///
    /// ```
    /// # use loggregator::{Limits, Message};
    /// let message = Message::parse(&[0x0A, 0].repeat(5), Limits::default())?;
    /// let sizes: Vec<_> = message.whole().chunks(2, 1000).map(|part| part.len()).collect();
    /// assert_eq!(sizes, [2, 2, 1]);
    /// # Ok::<(), loggregator::Error>(())
    /// ```
    pub fn chunks(self, envelopes: usize, bytes: usize) -> impl Iterator<Item = Run> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let n = rest.fitting(envelopes, bytes);
            let part = rest.slice(0..n);
            rest.start += n as u32;
            (n > 0).then_some(part)
        })
    }

    /// Both as one run, if `next` follows directly in the same message.
    pub fn try_join(&self, next: &Run) -> Option<Run> {
        let joins = self.end == next.start && self.message.is(&next.message);
        joins.then(|| Run {
            end: next.end,
            ..self.clone()
        })
    }

    /// The share of these envelopes in the message's memory, in bytes: somewhat more than
    /// [`byte_len`](Self::byte_len).
    pub fn memory(&self) -> usize {
        self.message.memory_of(self.range())
    }
}

/// A ring counts runs in envelopes, and in the memory that they keep.
impl diode::Weigh for Run {
    fn weight(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        self.memory()
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("range", &self.range())
            .field("message", &self.message)
            .finish()
    }
}
