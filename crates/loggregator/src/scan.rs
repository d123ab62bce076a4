//! The one pass over a received envelope: is it well formed, and where does it want to go?
//!
//! The rules are those of a protobuf decoder that knows the v2 schema: every text field is UTF-8,
//! the last value of a repeated scalar or of the `message` oneof wins, the same oneof member twice
//! is one merged member, unknown fields may be anything well formed, and a known number with
//! another wire type counts as unknown. Only nothing is built: of the whole envelope, the
//! [`Outline`] and the places of its metric names are kept.
//!
//! Most of an envelope is tags, and nearly all text is ASCII. So a run of text fields of the
//! usual shape is first only measured, then checked for ASCII as one stretch, lengths and keys
//! included (below 128 they are ASCII, too). Whatever looks different in any way is read field by
//! field.

use crate::error::{Fault, Flaw};
use crate::wire::{Cursor, FIXED64, LEN, Result, VARINT, key};

/// A stretch of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) at: u32,
    pub(crate) len: u32,
}

impl Span {
    /// What a cursor covers. Messages are below 4 GiB ([`Limits`](crate::Limits) sees to it).
    fn of(text: Cursor<'_>) -> Self {
        Span {
            at: text.position() as u32,
            len: text.rest().len() as u32,
        }
    }

    pub(crate) fn of_bytes(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at as usize..][..self.len as usize]
    }
}

/// The kind of an envelope: which member of its `message` oneof is set.
///
/// ```
/// use loggregator::{Kind, Limits, Message};
///
/// let counter = [0x2A, 0x03, 0x0A, 0x01, b'c'];
/// let message = Message::parse_envelope(&counter, Limits::default())?;
/// assert_eq!(message.facts(0).kind(), Some(Kind::Counter));
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A log line.
    Log,
    /// A counter.
    Counter,
    /// A gauge: a set of metrics.
    Gauge,
    /// A timer.
    Timer,
    /// An event.
    Event,
}

/// What routing needs of an envelope, beside the metric names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outline {
    pub(crate) source_id: Span,
    pub(crate) kind: Option<Kind>,
}

const TIMESTAMP: u32 = key(1, VARINT);
const SOURCE_ID: u32 = key(2, LEN);
const DEPRECATED_TAGS: u32 = key(3, LEN);
const LOG: u32 = key(4, LEN);
const COUNTER: u32 = key(5, LEN);
const GAUGE: u32 = key(6, LEN);
const TIMER: u32 = key(7, LEN);
const INSTANCE_ID: u32 = key(8, LEN);
const TAGS: u32 = key(9, LEN);
const EVENT: u32 = key(10, LEN);

const ENTRY_KEY: u32 = key(1, LEN);
const ENTRY_VALUE: u32 = key(2, LEN);

/// Fields of an envelope are at level 2, those of the messages in it deeper.
const ENVELOPE: usize = 2;
const BODY: usize = 3;
const ENTRY: usize = 4;
const TAG_ENTRY: usize = 3;
const TAG_VALUE: usize = 4;
const GAUGE_VALUE: usize = 5;

/// Reads one envelope and appends its metric names to `names`: exactly one for a counter, each
/// distinct one for a gauge, none for the other kinds.
pub(crate) fn envelope(mut at: Cursor<'_>, names: &mut Vec<Span>) -> Result<Outline> {
    let first_name = names.len();
    let nothing = Span {
        at: at.position() as u32,
        len: 0,
    };
    let mut outline = Outline {
        source_id: nothing,
        kind: None,
    };
    let mut counter = nothing;
    // The stretch of text fields of the usual shape that still has to be checked.
    let mut unchecked = 0..0;

    while !at.is_at_end() {
        let start = at.position();
        let mut plain = None;
        match at.key()? {
            TIMESTAMP => at.skip_varint()?,
            SOURCE_ID => {
                let text = at.nested()?;
                outline.source_id = Span::of(text);
                plain = plain_text(start, text)?;
            }
            INSTANCE_ID => plain = plain_text(start, at.nested()?)?,
            TAGS => {
                plain = plain_tag(&at);
                match plain {
                    Some(end) => at.set_position(end),
                    None => tag(at.nested()?)?,
                }
            }
            DEPRECATED_TAGS => {
                plain = plain_deprecated_tag(&at);
                match plain {
                    Some(end) => at.set_position(end),
                    None => deprecated_tag(at.nested()?)?,
                }
            }
            LOG => {
                outline.kind = Some(Kind::Log);
                log(at.nested()?)?;
            }
            COUNTER => {
                if outline.kind != Some(Kind::Counter) {
                    outline.kind = Some(Kind::Counter);
                    counter = nothing;
                }
                self::counter(at.nested()?, &mut counter)?;
            }
            GAUGE => {
                if outline.kind != Some(Kind::Gauge) {
                    outline.kind = Some(Kind::Gauge);
                    names.truncate(first_name);
                }
                gauge(at.nested()?, names)?;
            }
            TIMER => {
                outline.kind = Some(Kind::Timer);
                timer(at.nested()?)?;
            }
            EVENT => {
                outline.kind = Some(Kind::Event);
                event(at.nested()?)?;
            }
            unknown => at.skip(unknown, ENVELOPE)?,
        }
        if let Some(end) = plain {
            if unchecked.end != start {
                texts(at.bytes(), unchecked)?;
                unchecked = start..start;
            }
            unchecked.end = end;
        }
    }
    texts(at.bytes(), unchecked)?;

    match outline.kind {
        Some(Kind::Gauge) => distinct(at.bytes(), names, first_name),
        kind => {
            names.truncate(first_name);
            if kind == Some(Kind::Counter) {
                names.push(counter);
            }
        }
    }
    Ok(outline)
}

/// The end of a text field that can be checked together with its neighbours: key and length are one
/// byte each, hence ASCII. Any other is checked at once.
#[inline(always)]
fn plain_text(start: usize, text: Cursor<'_>) -> Result<Option<usize>> {
    if text.position() == start + 2 {
        return Ok(Some(text.end()));
    }
    utf8(text, "source_id or instance_id")?;
    Ok(None)
}

/// The end of a tag of the usual shape, key then value and all lengths below 128, starting with the
/// entry's length. `None`: look closer.
#[inline(always)]
fn plain_tag(at: &Cursor<'_>) -> Option<usize> {
    let bytes = at.bytes();
    let (value, end) = plain_entry(at)?;
    let [0x12, len] = *bytes.get(value..value + 2)? else {
        return None;
    };
    (value + 2 + usize::from(len) == end).then_some(end)
}

/// The same for a deprecated tag whose value is a text.
#[inline(always)]
fn plain_deprecated_tag(at: &Cursor<'_>) -> Option<usize> {
    let bytes = at.bytes();
    let (value, end) = plain_entry(at)?;
    let [0x12, value_len, 0x0A, len] = *bytes.get(value..value + 4)? else {
        return None;
    };
    (value + 2 + usize::from(value_len) == end && value + 4 + usize::from(len) == end)
        .then_some(end)
}

/// Where the value field of a map entry of the usual shape starts, and where the entry ends.
#[inline(always)]
fn plain_entry(at: &Cursor<'_>) -> Option<(usize, usize)> {
    let bytes = at.bytes();
    let start = at.position();
    let [entry_len, 0x0A, key_len] = *bytes.get(start..start + 3)? else {
        return None;
    };
    let end = start + 1 + usize::from(entry_len);
    // A longer key or value would not fit into an entry below 128, so its length is one byte, too.
    (entry_len < 0x80 && end <= bytes.len()).then_some((start + 3 + usize::from(key_len), end))
}

/// Checks a stretch of text fields of the usual shape.
#[inline(always)]
fn texts(bytes: &[u8], stretch: std::ops::Range<usize>) -> Result<()> {
    if bytes[stretch.clone()].is_ascii() {
        return Ok(());
    }
    texts_one_by_one(Cursor::new(&bytes[..stretch.end], stretch.start))
}

#[cold]
fn texts_one_by_one(mut at: Cursor<'_>) -> Result<()> {
    while !at.is_at_end() {
        match at.key()? {
            SOURCE_ID => utf8(at.nested()?, "source_id")?,
            INSTANCE_ID => utf8(at.nested()?, "instance_id")?,
            TAGS => tag(at.nested()?)?,
            DEPRECATED_TAGS => deprecated_tag(at.nested()?)?,
            other => at.skip(other, ENVELOPE)?,
        }
    }
    Ok(())
}

fn utf8(text: Cursor<'_>, what: &'static str) -> Result<()> {
    match std::str::from_utf8(text.rest()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Fault {
            flaw: Flaw::Utf8(what),
            offset: text.position() + error.valid_up_to(),
        }),
    }
}

fn tag(mut at: Cursor<'_>) -> Result<()> {
    while !at.is_at_end() {
        match at.key()? {
            ENTRY_KEY => utf8(at.nested()?, "a key of tags")?,
            ENTRY_VALUE => utf8(at.nested()?, "a value of tags")?,
            unknown => at.skip(unknown, TAG_ENTRY)?,
        }
    }
    Ok(())
}

fn deprecated_tag(mut at: Cursor<'_>) -> Result<()> {
    while !at.is_at_end() {
        match at.key()? {
            ENTRY_KEY => utf8(at.nested()?, "a key of deprecated_tags")?,
            ENTRY_VALUE => deprecated_value(at.nested()?)?,
            unknown => at.skip(unknown, TAG_ENTRY)?,
        }
    }
    Ok(())
}

fn deprecated_value(mut at: Cursor<'_>) -> Result<()> {
    const TEXT: u32 = key(1, LEN);
    const INTEGER: u32 = key(2, VARINT);
    const DECIMAL: u32 = key(3, FIXED64);
    while !at.is_at_end() {
        match at.key()? {
            TEXT => utf8(at.nested()?, "a text of deprecated_tags")?,
            INTEGER => at.skip_varint()?,
            DECIMAL => at.skip_fixed64()?,
            other => at.skip(other, TAG_VALUE)?,
        }
    }
    Ok(())
}

fn log(mut at: Cursor<'_>) -> Result<()> {
    const PAYLOAD: u32 = key(1, LEN);
    const TYPE: u32 = key(2, VARINT);
    while !at.is_at_end() {
        match at.key()? {
            PAYLOAD => drop(at.nested()?),
            TYPE => at.skip_varint()?,
            unknown => at.skip(unknown, BODY)?,
        }
    }
    Ok(())
}

fn counter(mut at: Cursor<'_>, name: &mut Span) -> Result<()> {
    const NAME: u32 = key(1, LEN);
    const DELTA: u32 = key(2, VARINT);
    const TOTAL: u32 = key(3, VARINT);
    while !at.is_at_end() {
        match at.key()? {
            NAME => {
                let text = at.nested()?;
                utf8(text, "the name of a counter")?;
                *name = Span::of(text);
            }
            DELTA | TOTAL => at.skip_varint()?,
            unknown => at.skip(unknown, BODY)?,
        }
    }
    Ok(())
}

fn gauge(mut at: Cursor<'_>, names: &mut Vec<Span>) -> Result<()> {
    const METRICS: u32 = key(1, LEN);
    while !at.is_at_end() {
        match at.key()? {
            METRICS => names.push(metric(at.nested()?)?),
            unknown => at.skip(unknown, BODY)?,
        }
    }
    Ok(())
}

fn metric(mut at: Cursor<'_>) -> Result<Span> {
    let mut name = Span {
        at: at.position() as u32,
        len: 0,
    };
    while !at.is_at_end() {
        match at.key()? {
            ENTRY_KEY => {
                let text = at.nested()?;
                utf8(text, "the name of a gauge's metric")?;
                name = Span::of(text);
            }
            ENTRY_VALUE => metric_value(at.nested()?)?,
            unknown => at.skip(unknown, ENTRY)?,
        }
    }
    Ok(name)
}

fn metric_value(mut at: Cursor<'_>) -> Result<()> {
    const UNIT: u32 = key(1, LEN);
    const VALUE: u32 = key(2, FIXED64);
    while !at.is_at_end() {
        match at.key()? {
            UNIT => utf8(at.nested()?, "the unit of a gauge's metric")?,
            VALUE => at.skip_fixed64()?,
            unknown => at.skip(unknown, GAUGE_VALUE)?,
        }
    }
    Ok(())
}

fn timer(mut at: Cursor<'_>) -> Result<()> {
    const NAME: u32 = key(1, LEN);
    const START: u32 = key(2, VARINT);
    const STOP: u32 = key(3, VARINT);
    while !at.is_at_end() {
        match at.key()? {
            NAME => utf8(at.nested()?, "the name of a timer")?,
            START | STOP => at.skip_varint()?,
            unknown => at.skip(unknown, BODY)?,
        }
    }
    Ok(())
}

fn event(mut at: Cursor<'_>) -> Result<()> {
    const TITLE: u32 = key(1, LEN);
    const BODY_TEXT: u32 = key(2, LEN);
    while !at.is_at_end() {
        match at.key()? {
            TITLE => utf8(at.nested()?, "the title of an event")?,
            BODY_TEXT => utf8(at.nested()?, "the body of an event")?,
            unknown => at.skip(unknown, BODY)?,
        }
    }
    Ok(())
}

/// Metrics are a map: of equal names only one counts. Removes the others from `names[first..]`.
fn distinct(bytes: &[u8], names: &mut Vec<Span>, first: usize) {
    /// Up to here comparing each with each is the quickest.
    const FEW: usize = 16;
    let many = names.len() - first > FEW;
    if many {
        names[first..].sort_unstable_by_key(|name| name.of_bytes(bytes));
    }
    let mut kept = first;
    for i in first..names.len() {
        let name = names[i].of_bytes(bytes);
        let earlier = &names[if many {
            kept.saturating_sub(1).max(first)
        } else {
            first
        }..kept];
        if !earlier
            .iter()
            .any(|earlier| earlier.of_bytes(bytes) == name)
        {
            names[kept] = names[i];
            kept += 1;
        }
    }
    names.truncate(kept);
}
