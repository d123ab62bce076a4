//! v1 envelopes: the messages of the protobuf package `events`, over borrowed bytes.
//!
//! Every field is an `Option`, also a required one: a conversion may have nothing to put there, and
//! then the result can't be sent ([`Envelope::missing`]).

use std::borrow::Cow;

use crate::error::{Error as ParseError, Fault};
use crate::message::Limits;
use crate::schema::{Fields, Text, Value, messages};
use crate::wire::{Cursor, LEN, Result, VARINT, key, put_varint};

/// Declares an enum of the wire. Any number is a value; some have names.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident, first $first:ident { $($variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub i32);

        #[allow(non_upper_case_globals, reason = "the names are those on the wire")]
        impl $name {
            $(
                #[doc = concat!("Number ", stringify!($number), ".")]
                pub const $variant: Self = $name($number);
            )*

            /// The name of this number; `None` if it has none.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $( $number => Some(stringify!($variant)), )*
                    _ => None,
                }
            }

            /// The number of exactly this name.
            pub fn from_name(name: &[u8]) -> Option<Self> {
                $(
                    if name == stringify!($variant).as_bytes() {
                        return Some(Self::$variant);
                    }
                )*
                None
            }

            /// The name, or the number in decimal if it has none.
            pub fn to_text(self) -> Cow<'static, str> {
                self.name().map_or_else(|| self.0.to_string().into(), Cow::Borrowed)
            }
        }

        /// The value of a field that isn't there.
        impl Default for $name {
            fn default() -> Self {
                Self::$first
            }
        }

        impl<'a> Value<'a> for $name {
            const WIRE_TYPE: u32 = VARINT;

            fn merge(&mut self, at: &mut Cursor<'a>, level: usize) -> Result<()> {
                self.0.merge(at, level)
            }

            fn put(&self, buf: &mut Vec<u8>) {
                self.0.put(buf);
            }
        }
    };
}

open_enum! {
    /// What an envelope is about; it decides which of the messages in it counts.
    ///
    /// ```
    /// use loggregator::v1::EventType;
    ///
    /// assert_eq!(EventType::from_name(b"LogMessage"), Some(EventType(5)));
    /// assert_eq!(EventType(5).name(), Some("LogMessage"));
    /// assert_eq!(EventType(1).to_text(), "1");
    /// ```
    EventType, first HttpStartStop {
        HttpStartStop = 4,
        LogMessage = 5,
        ValueMetric = 6,
        CounterEvent = 7,
        Error = 8,
        ContainerMetric = 9,
    }
}

open_enum! {
    /// Where a log line was written to.
    ///
    /// ```
    /// assert_eq!(loggregator::v1::MessageType::ERR.0, 2);
    /// ```
    MessageType, first OUT {
        OUT = 1,
        ERR = 2,
    }
}

open_enum! {
    /// Which side of an HTTP request reports it.
    ///
    /// ```
    /// assert_eq!(loggregator::v1::PeerType::Server.0, 2);
    /// ```
    PeerType, first Client {
        Client = 1,
        Server = 2,
    }
}

open_enum! {
    /// The method of an HTTP request.
    ///
    /// ```
    /// use loggregator::v1::Method;
    ///
    /// assert_eq!(Method::from_name(b"PROPFIND"), Some(Method(28)));
    /// assert_eq!(Method::from_name(b"propfind"), None);
    /// ```
    Method, first GET {
        GET = 1,
        POST = 2,
        PUT = 3,
        DELETE = 4,
        HEAD = 5,
        ACL = 6,
        BASELINE_CONTROL = 7,
        BIND = 8,
        CHECKIN = 9,
        CHECKOUT = 10,
        CONNECT = 11,
        COPY = 12,
        DEBUG = 13,
        LABEL = 14,
        LINK = 15,
        LOCK = 16,
        MERGE = 17,
        MKACTIVITY = 18,
        MKCALENDAR = 19,
        MKCOL = 20,
        MKREDIRECTREF = 21,
        MKWORKSPACE = 22,
        MOVE = 23,
        OPTIONS = 24,
        ORDERPATCH = 25,
        PATCH = 26,
        PRI = 27,
        PROPFIND = 28,
        PROPPATCH = 29,
        REBIND = 30,
        REPORT = 31,
        SEARCH = 32,
        SHOWMETHOD = 33,
        SPACEJUMP = 34,
        TEXTSEARCH = 35,
        TRACE = 36,
        TRACK = 37,
        UNBIND = 38,
        UNCHECKOUT = 39,
        UNLINK = 40,
        UNLOCK = 41,
        UPDATE = 42,
        UPDATEREDIRECTREF = 43,
        VERSION_CONTROL = 44,
    }
}

messages! {
    /// A v1 envelope. Strings are bytes that need not be UTF-8.
    ///
    /// Unknown fields are passed over: they live on in the bytes of a [`Payload`](super::Payload).
    ///
    /// ```
    /// use loggregator::{Limits, v1::{Envelope, EventType, ValueMetric}};
    ///
    /// let envelope = Envelope {
    ///     origin: Some(b"router".into()),
    ///     event_type: Some(EventType::ValueMetric),
    ///     value_metric: Some(ValueMetric {
    ///         name: Some(b"queue".into()),
    ///         value: Some(1.5),
    ///         unit: None,
    ///     }),
    ///     ..Default::default()
    /// };
    /// assert_eq!(envelope.missing(), Some("ValueMetric.unit"));
    /// let error = Envelope::parse(&envelope.to_bytes(), Limits::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "v1 envelope without ValueMetric.unit, which is required");
    /// ```
    pub struct Envelope<'a> {
        /// Which component sent it.
        1 required origin: Text<'a>,
        /// What it is about.
        2 required event_type: EventType,
        /// UNIX time in nanoseconds.
        6 optional timestamp: i64,
        /// An HTTP request.
        7 optional http_start_stop: HttpStartStop<'a>,
        /// A log line.
        8 optional log_message: LogMessage<'a>,
        /// A measured value.
        9 optional value_metric: ValueMetric<'a>,
        /// A counter's step.
        10 optional counter_event: CounterEvent<'a>,
        /// An error report.
        11 optional error: Error<'a>,
        /// Resource usage of an application's container.
        12 optional container_metric: ContainerMetric<'a>,
        /// Deployment of the sender.
        13 optional deployment: Text<'a>,
        /// Job of the sender.
        14 optional job: Text<'a>,
        /// Index of the sender in its job.
        15 optional index: Text<'a>,
        /// Address of the sender.
        16 optional ip: Text<'a>,
        /// Tags, a map: of equal keys the last one counts.
        17 repeated tags: Tag<'a>,
    }

    /// One entry of an envelope's tags.
    ///
    /// ```
    /// let tag = loggregator::v1::Tag { key: Some(b"zone".into()), value: Some(b"z1".into()) };
    /// # assert!(tag.key.is_some());
    /// ```
    pub struct Tag<'a> {
        /// The key; empty if it isn't there.
        1 optional key: Text<'a>,
        /// The value; empty if it isn't there.
        2 optional value: Text<'a>,
    }

    /// A log line of an application or a component.
    ///
    /// ```
    /// use loggregator::v1::{LogMessage, MessageType};
    ///
    /// let line = LogMessage {
    ///     message: Some(b"hello".into()),
    ///     message_type: Some(MessageType::OUT),
    ///     timestamp: Some(1_700_000_000_123_456_789),
    ///     ..Default::default()
    /// };
    /// # assert_eq!(line.app_id, None);
    /// ```
    pub struct LogMessage<'a> {
        /// The line.
        1 required message: Text<'a>,
        /// Where it was written to.
        2 required message_type: MessageType,
        /// UNIX time in nanoseconds.
        3 required timestamp: i64,
        /// The application.
        4 optional app_id: Text<'a>,
        /// What kind of source wrote it.
        5 optional source_type: Text<'a>,
        /// Which instance of the source.
        6 optional source_instance: Text<'a>,
    }

    /// A measured value.
    ///
    /// ```
    /// let metric = loggregator::v1::ValueMetric {
    ///     name: Some(b"queue".into()),
    ///     value: Some(1.5),
    ///     unit: Some(b"items".into()),
    /// };
    /// # assert!(metric.name.is_some());
    /// ```
    pub struct ValueMetric<'a> {
        /// What was measured.
        1 required name: Text<'a>,
        /// The value.
        2 required value: f64,
        /// Its unit.
        3 required unit: Text<'a>,
    }

    /// A counter's step.
    ///
    /// ```
    /// let event = loggregator::v1::CounterEvent {
    ///     name: Some(b"requests".into()),
    ///     delta: Some(5),
    ///     total: None,
    /// };
    /// # assert!(event.name.is_some());
    /// ```
    pub struct CounterEvent<'a> {
        /// What is counted.
        1 required name: Text<'a>,
        /// By how much it grew.
        2 required delta: u64,
        /// How much it is altogether.
        3 optional total: u64,
    }

    /// Resource usage of an application's container.
    ///
    /// ```
    /// let metric = loggregator::v1::ContainerMetric {
    ///     application_id: Some(b"app".into()),
    ///     cpu_percentage: Some(12.5),
    ///     ..Default::default()
    /// };
    /// # assert_eq!(metric.memory_bytes, None);
    /// ```
    pub struct ContainerMetric<'a> {
        /// The application.
        1 required application_id: Text<'a>,
        /// Which instance of it.
        2 required instance_index: i32,
        /// CPU usage in percent.
        3 required cpu_percentage: f64,
        /// Memory used, in bytes.
        4 required memory_bytes: u64,
        /// Disk used, in bytes.
        5 required disk_bytes: u64,
        /// Memory allowed, in bytes.
        6 optional memory_bytes_quota: u64,
        /// Disk allowed, in bytes.
        7 optional disk_bytes_quota: u64,
    }

    /// An HTTP request from its start to its end.
    ///
    /// ```
    /// use loggregator::v1::{HttpStartStop, Method};
    ///
    /// let request = HttpStartStop {
    ///     method: Some(Method::POST),
    ///     uri: Some(b"/v2/things".into()),
    ///     status_code: Some(201),
    ///     ..Default::default()
    /// };
    /// # assert_eq!(request.forwarded.len(), 0);
    /// ```
    pub struct HttpStartStop<'a> {
        /// UNIX time in nanoseconds.
        1 required start_timestamp: i64,
        /// UNIX time in nanoseconds.
        2 required stop_timestamp: i64,
        /// Names the request.
        3 required request_id: Uuid,
        /// Which side reports it.
        4 required peer_type: PeerType,
        /// Its method.
        5 required method: Method,
        /// Its target.
        6 required uri: Text<'a>,
        /// Address of the other side.
        7 required remote_address: Text<'a>,
        /// The client's name for itself.
        8 required user_agent: Text<'a>,
        /// Status of the response.
        9 required status_code: i32,
        /// Length of the response in bytes.
        10 required content_length: i64,
        /// The application that served it.
        12 optional application_id: Uuid,
        /// Which instance of it, by number.
        13 optional instance_index: i32,
        /// Which instance of it, by name.
        14 optional instance_id: Text<'a>,
        /// Addresses that forwarded it.
        15 repeated forwarded: Text<'a>,
    }

    /// An error report.
    ///
    /// ```
    /// let error = loggregator::v1::Error {
    ///     source: Some(b"agent".into()),
    ///     code: Some(42),
    ///     message: Some(b"it broke".into()),
    /// };
    /// # assert!(error.code.is_some());
    /// ```
    pub struct Error<'a> {
        /// Who reports it.
        1 required source: Text<'a>,
        /// A number for it.
        2 required code: i32,
        /// What happened.
        3 required message: Text<'a>,
    }
}

impl<'a> Envelope<'a> {
    /// Reads a serialized `events.Envelope`.
    ///
    /// # Errors
    ///
    /// If it is too large or malformed, or if a required field is missing in it or in any message
    /// within, also one that `event_type` doesn't name.
    pub fn parse(bytes: &'a [u8], limits: Limits) -> std::result::Result<Self, ParseError> {
        limits.check(bytes.len())?;
        let mut envelope = Envelope::default();
        envelope
            .merge_fields(Cursor::new(bytes, bytes.len()), 1)
            .map_err(|fault| {
                let Fault { flaw, offset } = fault;
                ParseError::Malformed {
                    envelope: 0,
                    offset,
                    flaw,
                }
            })?;
        match envelope.missing() {
            Some(field) => Err(ParseError::Missing { field }),
            None => Ok(envelope),
        }
    }

    /// The serialized envelope, whether complete or not.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut buf = Vec::with_capacity(256);
        self.put_fields(&mut buf);
        buf
    }

    /// The first required field that isn't there, as `Message.field`; without it the envelope can't
    /// be sent.
    pub fn missing(&self) -> Option<&'static str> {
        self.missing_field()
    }

    /// The value of a tag, if there is one with this key.
    pub fn tag(&self, key: &[u8]) -> Option<&[u8]> {
        let tag = self
            .tags
            .iter()
            .rfind(|tag| tag.key.as_deref().unwrap_or_default() == key)?;
        Some(tag.value.as_deref().unwrap_or_default())
    }
}

/// The name of a request or an application: two numbers here, 36 characters everywhere else.
///
/// ```
/// use loggregator::v1::Uuid;
///
/// let uuid = Uuid { low: Some(1), high: Some(2) };
/// assert_eq!(&uuid.to_text(), b"01000000-0000-0000-0200-000000000000");
/// assert_eq!(Uuid::from_text(&uuid.to_text()), Some(uuid));
/// assert_eq!(Uuid::from_text(b"gorouter"), None);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Uuid {
    /// The first eight bytes, little-endian. Required.
    pub low: Option<u64>,
    /// The other eight bytes, little-endian. Required.
    pub high: Option<u64>,
}

impl Uuid {
    const LOW: u32 = key(1, VARINT);
    const HIGH: u32 = key(2, VARINT);

    /// Where the text has separators; what stands there is not looked at.
    const SEPARATORS: [usize; 4] = [8, 13, 18, 23];

    /// Whether both halves are 0, or not there.
    pub fn is_zero(&self) -> bool {
        self.low.unwrap_or(0) == 0 && self.high.unwrap_or(0) == 0
    }

    /// As text: lower-case hexadecimal digits in groups of 8, 4, 4, 4 and 12.
    pub fn to_text(&self) -> [u8; 36] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let halves = [self.low, self.high].map(|half| half.unwrap_or(0).to_le_bytes());
        let mut digits = halves
            .as_flattened()
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 0xF])
            .map(usize::from);
        std::array::from_fn(|at| match Self::SEPARATORS.contains(&at) {
            true => b'-',
            false => digits.next().map_or(b'0', |digit| DIGITS[digit]),
        })
    }

    /// From text of exactly 36 bytes, with hexadecimal digits of either case; `None` if it is
    /// anything else.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let text: &[u8; 36] = text.try_into().ok()?;
        let mut halves = [[0_u8; 8]; 2];
        let digits = text
            .iter()
            .enumerate()
            .filter(|(at, _)| !Self::SEPARATORS.contains(at));
        for (place, (_, digit)) in digits.enumerate() {
            let digit = char::from(*digit).to_digit(16)? as u8;
            halves.as_flattened_mut()[place / 2] |= digit << (4 * (1 - place % 2));
        }
        let [low, high] = halves.map(|half| Some(u64::from_le_bytes(half)));
        Some(Uuid { low, high })
    }
}

impl<'a> Value<'a> for Uuid {
    const WIRE_TYPE: u32 = LEN;

    fn merge(&mut self, at: &mut Cursor<'a>, level: usize) -> Result<()> {
        let mut at = at.nested()?;
        while let Some(key) = at.next_key()? {
            match key {
                Self::LOW => self.low = Some(at.varint()?),
                Self::HIGH => self.high = Some(at.varint()?),
                unknown => at.skip(unknown, level + 1)?,
            }
        }
        Ok(())
    }

    fn put(&self, buf: &mut Vec<u8>) {
        crate::schema::put_nested(buf, |buf| {
            for (key, half) in [(Self::LOW, self.low), (Self::HIGH, self.high)] {
                if let Some(half) = half {
                    put_varint(buf, key.into());
                    put_varint(buf, half);
                }
            }
        });
    }

    fn missing(&self) -> Option<&'static str> {
        match self {
            Uuid { low: None, .. } => Some("UUID.low"),
            Uuid { high: None, .. } => Some("UUID.high"),
            _ => None,
        }
    }
}
