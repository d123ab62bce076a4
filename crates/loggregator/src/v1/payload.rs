//! v1 envelopes on their way through a router: bytes that are forwarded as they are, and where they
//! go.
//!
//! The tree of v1 subscriptions has two levels, application id and type. A filter names none, one
//! or both of them, and an envelope meets all four combinations.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::BufMut;
use pubsub::{Equivalent, Event, Interest, Path};
use smallvec::SmallVec;

use super::plumbing::{SubscriptionRequest, filter::Message as FilterKind};
use super::{Envelope, EventType};
use crate::error::Error;
use crate::message::Limits;
use crate::wire::varint_len;

/// What v1 filters tell apart.
///
/// ```
/// use loggregator::v1::{EventType, Type};
///
/// assert_eq!(Type::of(EventType::LogMessage), Type::Log);
/// assert_eq!(Type::of(EventType::HttpStartStop), Type::Metric);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Type {
    /// Log messages.
    Log,
    /// Everything else.
    Metric,
}

impl Type {
    /// The type of an envelope with this event type.
    pub fn of(event_type: EventType) -> Self {
        match event_type {
            EventType::LogMessage => Type::Log,
            _ => Type::Metric,
        }
    }
}

/// What a v1 filter fixes, one per level of the tree; cheap to clone.
///
/// ```
/// use loggregator::v1::{Key, Type};
/// use pubsub::Path;
///
/// let logs_of_app: Path<Key> = Path::root().key(Key::app_id("app")).key(Type::Log);
/// assert_eq!(logs_of_app.depth(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Key {
    /// First level: an application id.
    AppId(Arc<[u8]>),
    /// Second level: a type.
    Type(Type),
}

impl Key {
    /// The key of an application id.
    pub fn app_id(app_id: impl AsRef<[u8]>) -> Self {
        Key::AppId(app_id.as_ref().into())
    }

    fn lend(&self) -> KeyRef<'_> {
        match self {
            Key::AppId(app_id) => KeyRef::AppId(app_id),
            Key::Type(r#type) => KeyRef::Type(*r#type),
        }
    }
}

impl From<Type> for Key {
    fn from(r#type: Type) -> Self {
        Key::Type(r#type)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.lend().hash(state);
    }
}

/// The borrowed form of a [`Key`]: what an envelope has at one level.
///
/// ```
/// use loggregator::{Limits, v1::{KeyRef, Pushed, Type}};
/// use pubsub::Event;
///
/// let pushed = Pushed::parse(&[0x0A, 1, b'o', 0x10, 8], Limits::default())?;
/// assert_eq!(pushed.key(0), Some(KeyRef::AppId(b"system")));
/// assert_eq!(pushed.key(1), Some(KeyRef::Type(Type::Metric)));
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRef<'a> {
    /// First level: the application id, maybe empty.
    AppId(&'a [u8]),
    /// Second level: the type.
    Type(Type),
}

impl<'a> KeyRef<'a> {
    /// The key of an envelope at `depth`.
    pub(crate) fn at(depth: usize, app_id: &'a [u8], r#type: Type) -> Option<Self> {
        match depth {
            0 => Some(KeyRef::AppId(app_id)),
            1 => Some(KeyRef::Type(r#type)),
            _ => None,
        }
    }
}

impl Hash for KeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            KeyRef::AppId(app_id) => state.write(app_id),
            KeyRef::Type(r#type) => r#type.hash(state),
        }
    }
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self == key.lend()
    }
}

/// What a v1 consumer asks for, as the subscriber tree takes it.
///
/// ```
/// use loggregator::v1::{plumbing, subscription_to_interest};
///
/// let request = plumbing::SubscriptionRequest { shard_id: "firehose".into(), filter: None };
/// let interest = subscription_to_interest(&request);
/// assert_eq!(interest.paths()[0].depth(), 0, "everything");
/// ```
pub fn subscription_to_interest(request: &SubscriptionRequest) -> Interest<Key> {
    let (app_id, kind) = match &request.filter {
        Some(filter) => (&*filter.app_id, filter.message.as_ref()),
        None => ("", None),
    };
    let r#type = kind.map(|kind| match kind {
        FilterKind::Log(_) => Type::Log,
        FilterKind::Metric(_) => Type::Metric,
    });
    let path = match (app_id, r#type) {
        ("", None) => Path::root(),
        ("", Some(r#type)) => Path::root().any().key(r#type),
        (app_id, None) => Path::root().key(Key::app_id(app_id)),
        (app_id, Some(r#type)) => Path::root().key(Key::app_id(app_id)).key(r#type),
    };
    Interest::new([path]).shard(&request.shard_id)
}

/// A serialized v1 envelope that is complete and well formed; cheap to clone.
///
/// ```
/// use loggregator::{Limits, v1::Pushed};
///
/// let envelope = [0x0A, 1, b'o', 0x10, 6];
/// let pushed = Pushed::parse(&envelope, Limits::default())?;
/// let mut batch = Vec::new();
/// pushed.payload().append_to(&mut batch);
/// pushed.payload().append_to(&mut batch);
/// assert_eq!(batch, [0x0A, 5, 0x0A, 1, b'o', 0x10, 6].repeat(2));
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload(Arc<[u8]>);

impl Payload {
    /// Bytes that are known to be a complete envelope.
    pub(crate) fn new(envelope: &[u8]) -> Self {
        Payload(envelope.into())
    }

    /// The serialized envelope.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// How many bytes [`append_to`](Self::append_to) appends.
    pub fn field_len(&self) -> usize {
        1 + varint_len(self.0.len() as u64) + self.0.len()
    }

    /// Appends the envelope as a field: once makes a serialized `Response` (or `EnvelopeData`),
    /// several times a `BatchResponse`.
    ///
    /// # Panics
    ///
    /// If the buffer has not enough room and can't grow.
    pub fn append_to(&self, buf: &mut impl BufMut) {
        buf.put_u8(0x0A);
        prost::encoding::encode_varint(self.0.len() as u64, buf);
        buf.put_slice(&self.0);
    }
}

impl diode::Weigh for Payload {
    fn weight(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// The application id of what belongs to no application.
pub(crate) const SYSTEM: &[u8] = b"system";

/// A v1 envelope as a producer pushed it: its bytes, checked, and where they go. An event of the
/// tree of v1 subscriptions.
///
/// ```
/// use loggregator::{Limits, v1::{Pushed, Type}};
///
/// // A counter event without an application, and without its counter.
/// let pushed = Pushed::parse(&[0x0A, 1, b'o', 0x10, 7], Limits::default())?;
/// assert_eq!(pushed.app_id(), b"system");
/// assert_eq!(pushed.r#type(), Type::Metric);
///
/// let error = Pushed::parse(&[0x10, 7], Limits::default()).unwrap_err();
/// assert_eq!(error.to_string(), "v1 envelope without Envelope.origin, which is required");
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pushed {
    payload: Payload,
    /// Nearly always an identifier of 36 characters.
    app_id: SmallVec<[u8; 36]>,
    r#type: Type,
}

impl Pushed {
    /// Checks a serialized `events.Envelope` and copies it.
    ///
    /// # Errors
    ///
    /// As [`Envelope::parse`].
    pub fn parse(bytes: &[u8], limits: Limits) -> Result<Self, Error> {
        let envelope = Envelope::parse(bytes, limits)?;
        Ok(Pushed {
            payload: Payload::new(bytes),
            app_id: SmallVec::from_slice(&envelope.app_id()),
            r#type: Type::of(envelope.event_type.unwrap_or_default()),
        })
    }

    /// The envelope as v1 consumers get it: the bytes as they came.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// A view of the envelope.
    pub fn envelope(&self) -> Envelope<'_> {
        let limits = Limits { bytes: usize::MAX };
        Envelope::parse(self.payload.bytes(), limits).expect("it was read before")
    }

    /// The application id as filters see it; see [`Envelope::app_id`].
    pub fn app_id(&self) -> &[u8] {
        &self.app_id
    }

    /// What filters tell apart.
    pub fn r#type(&self) -> Type {
        self.r#type
    }
}

impl Event<Key> for Pushed {
    type Key<'a> = KeyRef<'a>;

    fn key(&self, depth: usize) -> Option<KeyRef<'_>> {
        KeyRef::at(depth, &self.app_id, self.r#type)
    }
}

impl diode::Weigh for Pushed {
    fn weight(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.payload.bytes().len()
    }
}

impl Envelope<'_> {
    /// The application id that filters are compared with: that of a log message or a container
    /// metric, empty if there is none; that of an HTTP request as text; and `system` for everything
    /// that has none.
    pub fn app_id(&self) -> Cow<'_, [u8]> {
        let text = match self.event_type {
            Some(EventType::LogMessage) => self
                .log_message
                .as_ref()
                .and_then(|log| log.app_id.as_deref()),
            Some(EventType::ContainerMetric) => self
                .container_metric
                .as_ref()
                .and_then(|metric| metric.application_id.as_deref()),
            Some(EventType::HttpStartStop) => {
                return match self
                    .http_start_stop
                    .as_ref()
                    .and_then(|http| http.application_id)
                {
                    Some(app_id) => Cow::Owned(app_id.to_text().to_vec()),
                    None => Cow::Borrowed(SYSTEM),
                };
            }
            _ => Some(SYSTEM),
        };
        Cow::Borrowed(text.unwrap_or_default())
    }
}
