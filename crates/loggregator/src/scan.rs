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
pub(crate) fn envelope(envelope: Cursor<'_>, names: &mut Vec<Span>) -> Result<Outline> {
    let mut at = envelope;
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
    // From here to there are text fields of the usual shape that still have to be checked.
    let mut unchecked = at;
    let mut until = at;

    loop {
        let start = at;
        let Some(key) = at.next_key()? else { break };
        let mut plain = false;
        match key {
            TIMESTAMP => at.skip_varint()?,
            SOURCE_ID => {
                outline.source_id = Span::of(at.nested()?);
                plain = true;
            }
            INSTANCE_ID => {
                at.nested()?;
                plain = true;
            }
            TAGS => {
                let len = plain_tags(start.rest());
                plain = len > 0;
                match plain {
                    true => at.advance(len - 1)?,
                    false => tag(at.nested()?)?,
                }
            }
            DEPRECATED_TAGS => {
                let len = plain_deprecated_tags(start.rest());
                plain = len > 0;
                match plain {
                    true => at.advance(len - 1)?,
                    false => deprecated_tag(at.nested()?)?,
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
        if plain {
            if until.position() != start.position() {
                texts(unchecked, until)?;
                unchecked = start;
            }
            until = at;
        }
    }
    texts(unchecked, until)?;

    match outline.kind {
        Some(Kind::Gauge) => distinct(envelope, names, first_name),
        kind => {
            names.truncate(first_name);
            if kind == Some(Kind::Counter) {
                names.push(counter);
            }
        }
    }
    Ok(outline)
}

/// How many bytes from the start of `fields` are tags of the usual shape: key then value, all
/// lengths below 128. They are well formed if only their texts are.
#[inline(always)]
fn plain_tags(fields: &[u8]) -> usize {
    let mut rest = fields;
    while let Some((value, behind)) = plain_entry(rest, TAGS)
        && let [0x12, len, text @ ..] = value
        && text.len() == usize::from(*len)
    {
        rest = behind;
    }
    fields.len() - rest.len()
}

/// The same for deprecated tags whose values are texts.
#[inline(always)]
fn plain_deprecated_tags(fields: &[u8]) -> usize {
    let mut rest = fields;
    while let Some((value, behind)) = plain_entry(rest, DEPRECATED_TAGS)
        && let [0x12, value_len, 0x0A, len, text @ ..] = value
        && text.len() == usize::from(*len)
        && text.len() + 2 == usize::from(*value_len)
    {
        rest = behind;
    }
    fields.len() - rest.len()
}

/// If `fields` start with a map entry under `key` that has a key of its own first, and all lengths
/// are below 128: the rest of the entry, and what is behind it.
#[inline(always)]
fn plain_entry(fields: &[u8], key: u32) -> Option<(&[u8], &[u8])> {
    // field key, length of the entry, 0x0A, length of the key
    let head = u32::from_le_bytes(*fields.first_chunk()?);
    if head & 0x80FF_80FF != 0x000A_0000 | key {
        return None;
    }
    let [_, len, _, key_len] = head.to_le_bytes();
    let (entry, behind) = fields.split_at_checked(2 + usize::from(len))?;
    Some((entry.get(4 + usize::from(key_len)..)?, behind))
}

/// Checks the text fields of the usual shape between two positions.
#[inline(always)]
fn texts(fields: Cursor<'_>, until: Cursor<'_>) -> Result<()> {
    let fields = fields.until(until);
    if is_ascii(fields.rest()) {
        return Ok(());
    }
    beyond_ascii(fields)
}

/// A text starts behind an ASCII byte, the last of its length, and ends before one, the next key, or
/// at either end of the stretch. No character spans those, so if the whole is UTF-8, each text is.
/// (Not the other way round, since a longer length is not ASCII.)
#[inline(never)]
fn beyond_ascii(fields: Cursor<'_>) -> Result<()> {
    match std::str::from_utf8(fields.rest()) {
        Ok(_) => Ok(()),
        Err(_) => texts_one_by_one(fields),
    }
}

/// The standard library's check goes through the last bytes one by one; this one looks at the last
/// 32 together, again.
#[inline(always)]
fn is_ascii(bytes: &[u8]) -> bool {
    const LANES: usize = 32;
    let Some(last) = bytes.last_chunk::<LANES>() else {
        return is_short_ascii(bytes);
    };
    let mut all = *last;
    for chunk in bytes.as_chunks::<LANES>().0 {
        for (all, byte) in all.iter_mut().zip(chunk) {
            *all |= byte;
        }
    }
    all.iter().fold(0, |any, byte| any | byte) < 0x80
}

/// The same for up to 32 bytes: the first and the last few together are all.
#[inline(always)]
fn is_short_ascii(bytes: &[u8]) -> bool {
    const HIGH_BITS: u128 = u128::from_ne_bytes([0x80; 16]);
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return (u128::from_ne_bytes(*first) | u128::from_ne_bytes(*last)) & HIGH_BITS == 0;
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return (u64::from_ne_bytes(*first) | u64::from_ne_bytes(*last)) & HIGH_BITS as u64 == 0;
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return (u32::from_ne_bytes(*first) | u32::from_ne_bytes(*last)) & HIGH_BITS as u32 == 0;
    }
    bytes.iter().fold(0, |any, byte| any | byte) < 0x80
}

#[cold]
fn texts_one_by_one(mut at: Cursor<'_>) -> Result<()> {
    while let Some(key) = at.next_key()? {
        match key {
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
    if is_ascii(text.rest()) {
        return Ok(());
    }
    match std::str::from_utf8(text.rest()) {
        Ok(_) => Ok(()),
        Err(error) => Err(Fault {
            flaw: Flaw::Utf8(what),
            offset: text.position() + error.valid_up_to(),
        }),
    }
}

fn tag(mut at: Cursor<'_>) -> Result<()> {
    while let Some(key) = at.next_key()? {
        match key {
            ENTRY_KEY => utf8(at.nested()?, "a key of tags")?,
            ENTRY_VALUE => utf8(at.nested()?, "a value of tags")?,
            unknown => at.skip(unknown, TAG_ENTRY)?,
        }
    }
    Ok(())
}

fn deprecated_tag(mut at: Cursor<'_>) -> Result<()> {
    while let Some(key) = at.next_key()? {
        match key {
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
    while let Some(key) = at.next_key()? {
        match key {
            TEXT => utf8(at.nested()?, "a text of deprecated_tags")?,
            INTEGER => at.skip_varint()?,
            DECIMAL => at.advance(8)?,
            other => at.skip(other, TAG_VALUE)?,
        }
    }
    Ok(())
}

fn log(mut at: Cursor<'_>) -> Result<()> {
    const PAYLOAD: u32 = key(1, LEN);
    const TYPE: u32 = key(2, VARINT);
    while let Some(key) = at.next_key()? {
        match key {
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
    while let Some(key) = at.next_key()? {
        match key {
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
    loop {
        let start = at;
        match at.next_key()? {
            None => return Ok(()),
            Some(METRICS) => names.push(match plain_metric(start.rest()) {
                Some((name, len)) => {
                    at.advance(len - 1)?;
                    Span {
                        at: (start.position() + NAME) as u32,
                        len: name as u32,
                    }
                }
                None => metric(at.nested()?)?,
            }),
            Some(unknown) => at.skip(unknown, BODY)?,
        }
    }
}

const METRICS: u32 = key(1, LEN);

/// Where the name is in a metric of the usual shape: behind the keys and lengths of metric and name.
const NAME: usize = 4;

/// If `fields` start with a metric of the usual shape, name then unit then value, all lengths below
/// 128, all text ASCII: the lengths of the name and of the whole.
#[inline(always)]
fn plain_metric(fields: &[u8]) -> Option<(usize, usize)> {
    let (value, behind) = plain_entry(fields, METRICS)?;
    let [0x12, value_len, 0x0A, unit_len, unit_and_number @ ..] = value else {
        return None;
    };
    let (unit, [0x11, _, _, _, _, _, _, _, _]) =
        unit_and_number.split_at_checked(usize::from(*unit_len))?
    else {
        return None;
    };
    let len = fields.len() - behind.len();
    let name = len - NAME - value.len();
    let texts = &fields[NAME..NAME + name + 4 + unit.len()];
    let is_plain = usize::from(*value_len) == value.len() - 2 && is_ascii(texts);
    is_plain.then_some((name, len))
}

fn metric(mut at: Cursor<'_>) -> Result<Span> {
    let mut name = Span {
        at: at.position() as u32,
        len: 0,
    };
    while let Some(key) = at.next_key()? {
        match key {
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
    while let Some(key) = at.next_key()? {
        match key {
            UNIT => utf8(at.nested()?, "the unit of a gauge's metric")?,
            VALUE => at.advance(8)?,
            unknown => at.skip(unknown, GAUGE_VALUE)?,
        }
    }
    Ok(())
}

fn timer(mut at: Cursor<'_>) -> Result<()> {
    const NAME: u32 = key(1, LEN);
    const START: u32 = key(2, VARINT);
    const STOP: u32 = key(3, VARINT);
    while let Some(key) = at.next_key()? {
        match key {
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
    while let Some(key) = at.next_key()? {
        match key {
            TITLE => utf8(at.nested()?, "the title of an event")?,
            BODY_TEXT => utf8(at.nested()?, "the body of an event")?,
            unknown => at.skip(unknown, BODY)?,
        }
    }
    Ok(())
}

/// Metrics are a map: of equal names only one counts. Removes the others from `names[first..]`.
fn distinct(envelope: Cursor<'_>, names: &mut Vec<Span>, first: usize) {
    /// Up to here comparing each with each is the quickest.
    const FEW: usize = 16;
    let text = |name: Span| {
        let start = name.at as usize - envelope.position();
        &envelope.rest()[start..start + name.len as usize]
    };
    let many = names.len() - first > FEW;
    if many {
        names[first..].sort_unstable_by_key(|name| text(*name));
    }
    let mut kept = first;
    for i in first..names.len() {
        let name = names[i];
        let candidates = if many {
            kept.saturating_sub(1).max(first)..kept
        } else {
            first..kept
        };
        if !names[candidates]
            .iter()
            .any(|earlier| text(*earlier) == text(name))
        {
            names[kept] = name;
            kept += 1;
        }
    }
    names.truncate(kept);
}
