//! A received message as one shared object: its bytes, in an allocation of exact size, and a table
//! that says where each envelope ends and what routing needs of it.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Fault};
use crate::keys::MetricNames;
use crate::run::Run;
use crate::scan::{self, Kind, Outline, Span};
use crate::wire::{Cursor, LEN, key, put_varint, varint_len};

/// How large a received message may be.
///
/// ```
/// use loggregator::{Error, Limits, Message};
///
/// let limits = Limits { bytes: 16 };
/// let error = Message::parse(&[0; 17], limits).unwrap_err();
/// assert_eq!(error, Error::TooLarge { len: 17, limit: 16 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest message in bytes; 10 MiB by default, as in the reference. More than 1 GiB is
    /// never accepted, whatever is set here.
    pub bytes: usize,
}

impl Limits {
    /// Places in a message are kept as 32-bit numbers.
    const MOST: usize = 1 << 30;

    pub(crate) fn check(self, len: usize) -> Result<(), Error> {
        let limit = self.bytes.min(Self::MOST);
        if len > limit {
            Err(Error::TooLarge { len, limit })
        } else {
            Ok(())
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits { bytes: 10 << 20 }
    }
}

/// An `EnvelopeBatch` that was checked and found well formed: its bytes, and for each envelope what
/// routing needs. Cheap to clone, since all clones and [`Run`]s share one object.
///
/// Unknown fields of the batch itself are dropped, as in the reference, which rebuilds batches.
/// Everything within an envelope stays as it came.
///
/// ```
/// use loggregator::{Kind, Limits, Message, v2};
/// use prost::Message as _;
///
/// let log = v2::envelope::Message::Log(v2::Log { payload: b"hello".to_vec(), r#type: 0 });
/// let envelope = v2::Envelope { source_id: "app".into(), message: Some(log), ..Default::default() };
/// let batch = v2::EnvelopeBatch { batch: vec![envelope.clone(), envelope] };
///
/// let message = Message::parse(&batch.encode_to_vec(), Limits::default())?;
/// assert_eq!(message.len(), 2);
/// assert_eq!(message.facts(1).source_id(), "app");
/// assert_eq!(message.facts(1).kind(), Some(Kind::Log));
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Clone)]
pub struct Message(Arc<Inner>);

struct Inner {
    bytes: Box<[u8]>,
    rows: Box<[Row]>,
    names: Box<[Span]>,
}

/// What is known of one envelope.
#[derive(Clone, Copy)]
struct Row {
    /// Where its element of the batch ends in `bytes`; it begins where the one before ends.
    end: u32,
    /// Where its metric names end in `names`, likewise.
    names_end: u32,
    source_id: Span,
    kind: Option<Kind>,
}

/// A message of tiny envelopes is mostly rows.
const _: () = assert!(size_of::<Row>() == 20);

impl Message {
    /// Checks a serialized `EnvelopeBatch`, of zero or more envelopes, and copies it.
    ///
    /// The rules are those of a full protobuf decoder; see the crate's documentation.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], or [`Error::Malformed`] if anything in any envelope is wrong: a message
    /// is taken as a whole or not at all.
    pub fn parse(bytes: &[u8], limits: Limits) -> Result<Self, Error> {
        Self::of_batch(bytes, limits)
    }

    /// As [`parse`](Self::parse), for bytes that nobody else needs: they are kept instead of copied,
    /// unless the batch has unknown fields.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    ///
    /// ```
    /// use loggregator::{Limits, Message};
    ///
    /// let message = Message::from_vec(vec![0x0A, 2, 0x12, 0], Limits::default())?;
    /// assert_eq!(message.len(), 1);
    /// # Ok::<(), loggregator::Error>(())
    /// ```
    pub fn from_vec(bytes: Vec<u8>, limits: Limits) -> Result<Self, Error> {
        Self::of_batch(bytes, limits)
    }

    fn of_batch(whole: impl AsRef<[u8]> + Into<Vec<u8>>, limits: Limits) -> Result<Self, Error> {
        let bytes = whole.as_ref();
        limits.check(bytes.len())?;
        let mut table = Table::default();
        let mut rebuilt = Vec::new();
        // Where the stretch of elements starts that was read but not copied yet.
        let mut uncopied = 0;
        // What was left out so far.
        let mut dropped = 0;
        let mut at = Cursor::new(bytes, bytes.len());
        loop {
            let start = at.position();
            let element = at.next_key().and_then(|key| match key {
                None => Ok(Element::End),
                Some(BATCH) => at.nested().map(Element::Envelope),
                Some(unknown) => at.skip(unknown, 1).map(|()| Element::Unknown),
            });
            match element.map_err(|fault| table.error(fault))? {
                Element::End => break,
                Element::Envelope(envelope) => {
                    if table.rows.is_empty() {
                        table.expect(bytes.len(), at.position() - start);
                    }
                    table.read(envelope, at.position() - dropped)?;
                }
                Element::Unknown => {
                    rebuilt.extend_from_slice(&bytes[uncopied..start]);
                    uncopied = at.position();
                    dropped += uncopied - start;
                }
            }
        }
        if dropped == 0 {
            return Ok(table.message(whole.into()));
        }
        rebuilt.extend_from_slice(&bytes[uncopied..]);
        Ok(table.message(rebuilt))
    }

    /// Checks a single serialized `Envelope` and stores it as a batch of one.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn parse_envelope(bytes: &[u8], limits: Limits) -> Result<Self, Error> {
        limits.check(bytes.len())?;
        let mut stored = Vec::with_capacity(1 + varint_len(bytes.len() as u64) + bytes.len());
        stored.push(BATCH as u8);
        put_varint(&mut stored, bytes.len() as u64);
        let header = stored.len();
        stored.extend_from_slice(bytes);
        let mut table = Table::default();
        table.rows.reserve_exact(1);
        table
            .read(Cursor::new(&stored[header..], stored.len()), stored.len())
            .map_err(|error| match error {
                Error::Malformed {
                    envelope,
                    offset,
                    flaw,
                } => Error::Malformed {
                    envelope,
                    offset: offset - header,
                    flaw,
                },
                other => other,
            })?;
        Ok(table.message(stored))
    }

    /// Number of envelopes.
    pub fn len(&self) -> usize {
        self.0.rows.len()
    }

    /// Whether there is no envelope in it. An empty message is legal.
    pub fn is_empty(&self) -> bool {
        self.0.rows.is_empty()
    }

    /// Length of the serialized batch in bytes.
    pub fn byte_len(&self) -> usize {
        self.0.bytes.len()
    }

    /// What is known of the envelope at `index`.
    ///
    /// # Panics
    ///
    /// If there is no such envelope.
    pub fn facts(&self, index: usize) -> Facts<'_> {
        assert!(index < self.len(), "envelope {index} of {}", self.len());
        Facts {
            message: &self.0,
            index,
        }
    }

    /// All envelopes as one run.
    pub fn whole(&self) -> Run {
        self.run(0..self.len())
    }

    /// The envelopes of `range` as a run.
    ///
    /// # Panics
    ///
    /// If the range ends behind the last envelope or before it starts.
    pub fn run(&self, range: Range<usize>) -> Run {
        Run::new(self.clone(), range)
    }

    /// A compact copy of the envelopes in `ranges`, one after the other, in one new allocation of
    /// exact size: for a subscriber that gets little of a large message, so that what it keeps
    /// doesn't keep the rest in memory.
    ///
    /// # Panics
    ///
    /// If a range ends behind the last envelope or before it starts.
    ///
    /// ```
    /// # use loggregator::{Limits, Message};
    /// let message = Message::parse(&[0x0A, 2, 0x12, 0, 0x0A, 0, 0x0A, 2, 0x42, 0], Limits::default())?;
    /// let ends = message.select([0..1, 2..3]);
    /// assert_eq!(ends.bytes(), [0x0A, 2, 0x12, 0, 0x0A, 2, 0x42, 0]);
    /// # Ok::<(), loggregator::Error>(())
    /// ```
    pub fn select<I>(&self, ranges: I) -> Run
    where
        I: IntoIterator<Item = Range<usize>>,
        I::IntoIter: Clone,
    {
        let ranges = ranges.into_iter();
        let (mut rows, mut len, mut names_len) = (0, 0, 0);
        for range in ranges.clone() {
            rows += range.len();
            len += self.span(range.clone()).len();
            names_len += self.0.names(range).len();
        }
        let mut bytes = Vec::with_capacity(len);
        let mut table = Table {
            rows: Vec::with_capacity(rows),
            names: Vec::with_capacity(names_len),
        };
        for range in ranges {
            let span = self.span(range.clone());
            // How far these envelopes and their names move; places are 32-bit numbers that wrap.
            let shift = (bytes.len() as u32).wrapping_sub(span.start as u32);
            let moved = |span: Span| Span {
                at: span.at.wrapping_add(shift),
                ..span
            };
            let names_start = self.0.names_start(range.start);
            let names_shift = (table.names.len() as u32).wrapping_sub(names_start as u32);
            bytes.extend_from_slice(&self.0.bytes[span]);
            table
                .names
                .extend(self.0.names(range.clone()).iter().copied().map(moved));
            table.rows.extend(self.0.rows[range].iter().map(|row| Row {
                end: row.end.wrapping_add(shift),
                names_end: row.names_end.wrapping_add(names_shift),
                source_id: moved(row.source_id),
                kind: row.kind,
            }));
        }
        table.message(bytes).whole()
    }

    /// Memory that the message occupies, in bytes: the envelopes and what is known of them.
    pub fn memory(&self) -> usize {
        self.memory_of(0..self.len()) + size_of::<Inner>()
    }

    /// The share of some envelopes in [`memory`](Self::memory).
    pub(crate) fn memory_of(&self, range: Range<usize>) -> usize {
        let (rows, names) = (&self.0.rows[range.clone()], self.0.names(range.clone()));
        self.span(range).len() + size_of_val(rows) + size_of_val(names)
    }

    /// Where the elements of `range` are in [`bytes`](Self::bytes).
    pub(crate) fn span(&self, range: Range<usize>) -> Range<usize> {
        self.0.start(range.start)..self.0.start(range.end)
    }

    /// The serialized batch.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// The last index up to which elements from `first` on, at most `limit`, take at most `bytes`.
    pub(crate) fn fitting(&self, first: usize, limit: usize, bytes: usize) -> usize {
        let most = self.0.start(first).saturating_add(bytes);
        first + self.0.rows[first..limit].partition_point(|row| row.end as usize <= most)
    }

    /// Whether both are the same object.
    pub(crate) fn is(&self, other: &Message) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.len())
            .field("byte_len", &self.byte_len())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn start(&self, index: usize) -> usize {
        if index == 0 {
            0
        } else {
            self.rows[index - 1].end as usize
        }
    }

    fn names_start(&self, index: usize) -> usize {
        if index == 0 {
            0
        } else {
            self.rows[index - 1].names_end as usize
        }
    }

    fn names(&self, range: Range<usize>) -> &[Span] {
        &self.names[self.names_start(range.start)..self.names_start(range.end)]
    }
}

/// The key of an element of a batch.
const BATCH: u32 = key(1, LEN);

/// What comes next in a batch.
enum Element<'a> {
    Envelope(Cursor<'a>),
    Unknown,
    End,
}

/// The rows of a message that is being read.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    names: Vec<Span>,
}

impl Table {
    /// Envelopes of one message tend to be of a size: makes room for as many as `bytes` would hold,
    /// within reason, so that the table seldom grows.
    fn expect(&mut self, bytes: usize, first: usize) {
        let count = bytes.div_ceil(first);
        self.rows.reserve_exact((count + count / 8).min(256));
    }

    /// Reads one envelope, which ends at `end` in the bytes to be stored.
    #[inline]
    fn read(&mut self, envelope: Cursor<'_>, end: usize) -> Result<(), Error> {
        let first_name = self.names.len();
        let moved = envelope.end() - end;
        let Outline {
            mut source_id,
            kind,
        } = scan::envelope(envelope, &mut self.names).map_err(|fault| self.error(fault))?;
        if moved > 0 {
            source_id.at -= moved as u32;
            for name in &mut self.names[first_name..] {
                name.at -= moved as u32;
            }
        }
        if first_name == 0 && !self.names.is_empty() {
            let rest = self.names.len() * (self.rows.capacity() - 1);
            self.names.reserve_exact(rest.min(1024));
        }
        let names_end = self.names.len() as u32;
        self.rows.push(Row {
            end: end as u32,
            names_end,
            source_id,
            kind,
        });
        Ok(())
    }

    #[cold]
    fn error(&self, Fault { flaw, offset }: Fault) -> Error {
        Error::Malformed {
            envelope: self.rows.len(),
            offset,
            flaw,
        }
    }

    fn message(self, bytes: Vec<u8>) -> Message {
        Message(Arc::new(Inner {
            bytes: bytes.into_boxed_slice(),
            rows: self.rows.into_boxed_slice(),
            names: self.names.into_boxed_slice(),
        }))
    }
}

/// What is known of one envelope of a [`Message`]; the event that the subscriber tree routes.
///
/// ```
/// use loggregator::{Limits, Message};
///
/// // A counter "c" from "app".
/// let envelope = [0x12, 3, b'a', b'p', b'p', 0x2A, 3, 0x0A, 1, b'c'];
/// let message = Message::parse_envelope(&envelope, Limits::default())?;
/// let facts = message.facts(0);
/// assert_eq!(facts.source_id(), "app");
/// assert_eq!(facts.counter_name(), Some("c"));
/// assert_eq!(facts.bytes(), envelope);
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    message: &'a Inner,
    index: usize,
}

impl<'a> Facts<'a> {
    fn row(&self) -> &'a Row {
        &self.message.rows[self.index]
    }

    /// The source id, maybe empty.
    pub fn source_id(&self) -> &'a str {
        text(self.source_id_bytes())
    }

    /// The source id as bytes, which costs nothing.
    pub fn source_id_bytes(&self) -> &'a [u8] {
        self.row().source_id.of_bytes(&self.message.bytes)
    }

    /// The kind; `None` if the envelope has none, or one that is not known here. Such an envelope
    /// matches no selector.
    pub fn kind(&self) -> Option<Kind> {
        self.row().kind
    }

    /// A counter's name, maybe empty; `None` for other kinds.
    pub fn counter_name(&self) -> Option<&'a str> {
        match self.kind() {
            Some(Kind::Counter) => self.metric_names().iter().next().map(text),
            _ => None,
        }
    }

    /// The distinct metric names of a gauge; of a counter its one name; for other kinds nothing.
    pub fn metric_names(&self) -> MetricNames<'a> {
        MetricNames::new(
            &self.message.bytes,
            self.message.names(self.index..self.index + 1),
        )
    }

    /// The serialized `Envelope`.
    pub fn bytes(&self) -> &'a [u8] {
        let element = self.message.start(self.index)..self.row().end as usize;
        let mut at = Cursor::new(&self.message.bytes[element.clone()], element.end);
        match at.next_key().and_then(|_| at.nested()) {
            Ok(envelope) => envelope.rest(),
            Err(_) => unreachable!("it was read before"),
        }
    }
}

impl std::fmt::Debug for Facts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Facts")
            .field("source_id", &self.source_id())
            .field("kind", &self.kind())
            .field("metric_names", &self.metric_names())
            .finish()
    }
}

/// Bytes that were found to be UTF-8 before.
pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}
