//! A v2 envelope as a struct over its bytes: what converting needs to know of it.

use crate::Text;
use crate::schema::{Value, messages, put_nested};
use crate::wire::{Cursor, FIXED64, LEN, Result, VARINT, key, put_varint};

messages! {
    pub(super) struct Log<'a> {
        1 optional payload: Text<'a>,
        2 optional r#type: i32,
    }

    pub(super) struct Counter<'a> {
        1 optional name: Text<'a>,
        2 optional delta: u64,
        3 optional total: u64,
    }

    pub(super) struct Gauge<'a> {
        1 repeated metrics: Metric<'a>,
    }

    pub(super) struct Metric<'a> {
        1 optional name: Text<'a>,
        2 optional value: GaugeValue<'a>,
    }

    pub(super) struct GaugeValue<'a> {
        1 optional unit: Text<'a>,
        2 optional value: f64,
    }

    pub(super) struct Timer<'a> {
        1 optional name: Text<'a>,
        2 optional start: i64,
        3 optional stop: i64,
    }

    pub(super) struct Tag<'a> {
        1 optional key: Text<'a>,
        2 optional value: Text<'a>,
    }

    pub(super) struct DeprecatedTag<'a> {
        1 optional key: Text<'a>,
        2 optional value: TagValue<'a>,
    }
}

/// A typed tag value: the last of its members that was set.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum TagValue<'a> {
    #[default]
    None,
    Text(Text<'a>),
    Integer(i64),
    Decimal(f64),
}

/// What an envelope is about: the last member that was set, in one piece if it came in several.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) enum Body<'a> {
    /// Nothing, or nothing that v1 knows.
    #[default]
    None,
    Log(Log<'a>),
    Counter(Counter<'a>),
    Gauge(Gauge<'a>),
    Timer(Timer<'a>),
}

impl<'a> Value<'a> for TagValue<'a> {
    const WIRE_TYPE: u32 = LEN;

    fn merge(&mut self, at: &mut Cursor<'a>, level: usize) -> Result<()> {
        let mut at = at.nested()?;
        while let Some(key) = at.next_key()? {
            match key {
                Self::TEXT => *self = TagValue::Text(at.nested()?.rest().into()),
                Self::INTEGER => *self = TagValue::Integer(at.varint()? as i64),
                Self::DECIMAL => *self = TagValue::Decimal(f64::from_le_bytes(at.fixed64()?)),
                unknown => at.skip(unknown, level + 1)?,
            }
        }
        Ok(())
    }

    fn put(&self, buf: &mut Vec<u8>) {
        put_nested(buf, |buf| match self {
            TagValue::None => {}
            TagValue::Text(text) => put(buf, Self::TEXT, text),
            TagValue::Integer(integer) => put(buf, Self::INTEGER, integer),
            TagValue::Decimal(decimal) => put(buf, Self::DECIMAL, decimal),
        });
    }
}

impl TagValue<'_> {
    const TEXT: u32 = key(1, LEN);
    const INTEGER: u32 = key(2, VARINT);
    const DECIMAL: u32 = key(3, FIXED64);
}

/// A v2 envelope, events' contents left out.
#[derive(Debug, Clone, Default)]
pub(super) struct View<'a> {
    pub(super) timestamp: i64,
    pub(super) source_id: Text<'a>,
    pub(super) instance_id: Text<'a>,
    pub(super) deprecated_tags: Vec<DeprecatedTag<'a>>,
    pub(super) tags: Vec<Tag<'a>>,
    pub(super) body: Body<'a>,
}

impl<'a> View<'a> {
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

    /// Reads a serialized envelope.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        /// That nothing is nested too deep was checked when the envelope was received.
        const LEVEL: usize = 0;

        /// Reads a member of the oneof: into what is there, if it is of the same kind.
        macro_rules! member {
            ($kind:ident, $view:expr, $at:expr) => {{
                if !matches!($view.body, Body::$kind(_)) {
                    $view.body = Body::$kind(Default::default());
                }
                if let Body::$kind(member) = &mut $view.body {
                    member.merge($at, LEVEL)?;
                }
            }};
        }

        let mut view = View::default();
        let at = &mut Cursor::new(bytes, bytes.len());
        while let Some(key) = at.next_key()? {
            match key {
                Self::TIMESTAMP => view.timestamp.merge(at, LEVEL)?,
                Self::SOURCE_ID => view.source_id.merge(at, LEVEL)?,
                Self::DEPRECATED_TAGS => push(&mut view.deprecated_tags).merge(at, LEVEL)?,
                Self::LOG => member!(Log, view, at),
                Self::COUNTER => member!(Counter, view, at),
                Self::GAUGE => member!(Gauge, view, at),
                Self::TIMER => member!(Timer, view, at),
                Self::INSTANCE_ID => view.instance_id.merge(at, LEVEL)?,
                Self::TAGS => push(&mut view.tags).merge(at, LEVEL)?,
                Self::EVENT => {
                    at.nested()?;
                    view.body = Body::None;
                }
                unknown => at.skip(unknown, LEVEL)?,
            }
        }
        Ok(view)
    }

    /// The serialized envelope.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut buf = Vec::with_capacity(512);
        if self.timestamp != 0 {
            put(&mut buf, Self::TIMESTAMP, &self.timestamp);
        }
        if !self.source_id.is_empty() {
            put(&mut buf, Self::SOURCE_ID, &self.source_id);
        }
        for tag in &self.deprecated_tags {
            put(&mut buf, Self::DEPRECATED_TAGS, tag);
        }
        match &self.body {
            Body::None => {}
            Body::Log(log) => put(&mut buf, Self::LOG, log),
            Body::Counter(counter) => put(&mut buf, Self::COUNTER, counter),
            Body::Gauge(gauge) => put(&mut buf, Self::GAUGE, gauge),
            Body::Timer(timer) => put(&mut buf, Self::TIMER, timer),
        }
        if !self.instance_id.is_empty() {
            put(&mut buf, Self::INSTANCE_ID, &self.instance_id);
        }
        for tag in &self.tags {
            put(&mut buf, Self::TAGS, tag);
        }
        buf
    }
}

/// Appends a field.
fn put<'a>(buf: &mut Vec<u8>, key: u32, value: &impl Value<'a>) {
    put_varint(buf, key.into());
    value.put(buf);
}

/// A new last element.
fn push<T: Default>(list: &mut Vec<T>) -> &mut T {
    list.push(T::default());
    list.last_mut().expect("just pushed")
}
