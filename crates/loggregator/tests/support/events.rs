//! v1 envelopes by another codec: prost structs, with bytes for strings and everything optional, so
//! that any result can be compared, complete or not. And with it the judge of what is accepted.

use loggregator::convert::{TagMap, v1_to_v2, v2_to_v1};
use loggregator::v1::Pushed;
use loggregator::{Error as Refusal, Limits};
use prost::Message as _;

use super::oracle::{Fields, renumbered};

const UUID: Fields = Fields(&[(1, 0, None), (2, 0, None)]);
const HTTP_START_STOP: Fields = Fields(&[
    (1, 0, None),
    (2, 0, None),
    (3, 2, Some(&UUID)),
    (4, 0, None),
    (5, 0, None),
    (6, 2, None),
    (7, 2, None),
    (8, 2, None),
    (9, 0, None),
    (10, 0, None),
    (12, 2, Some(&UUID)),
    (13, 0, None),
    (14, 2, None),
    (15, 2, None),
]);
const LOG_MESSAGE: Fields = Fields(&[
    (1, 2, None),
    (2, 0, None),
    (3, 0, None),
    (4, 2, None),
    (5, 2, None),
    (6, 2, None),
]);
const VALUE_METRIC: Fields = Fields(&[(1, 2, None), (2, 1, None), (3, 2, None)]);
const COUNTER_EVENT: Fields = Fields(&[(1, 2, None), (2, 0, None), (3, 0, None)]);
const ERROR: Fields = Fields(&[(1, 2, None), (2, 0, None), (3, 2, None)]);
const CONTAINER_METRIC: Fields = Fields(&[
    (1, 2, None),
    (2, 0, None),
    (3, 1, None),
    (4, 0, None),
    (5, 0, None),
    (6, 0, None),
    (7, 0, None),
]);
const TAG: Fields = Fields(&[(1, 2, None), (2, 2, None)]);
const ENVELOPE: Fields = Fields(&[
    (1, 2, None),
    (2, 0, None),
    (6, 0, None),
    (7, 2, Some(&HTTP_START_STOP)),
    (8, 2, Some(&LOG_MESSAGE)),
    (9, 2, Some(&VALUE_METRIC)),
    (10, 2, Some(&COUNTER_EVENT)),
    (11, 2, Some(&ERROR)),
    (12, 2, Some(&CONTAINER_METRIC)),
    (13, 2, None),
    (14, 2, None),
    (15, 2, None),
    (16, 2, None),
    (17, 2, Some(&TAG)),
]);

/// Holds the v1 layer's view of `bytes` against the other codec: the same verdict, required fields
/// included, and the same content. What is accepted converts to a well-formed v2 envelope, and that
/// back to v1, and nothing panics.
///
/// # Panics
///
/// If there is a difference.
pub fn check(bytes: &[u8]) {
    let limits = Limits::default();
    let pushed = Pushed::parse(bytes, limits);
    let Ok(expected) = Envelope::decode(&*renumbered(bytes, ENVELOPE.0)) else {
        assert!(
            matches!(pushed, Err(Refusal::Malformed { .. })),
            "a full decoder refuses this"
        );
        return;
    };
    let pushed = match pushed {
        Ok(pushed) => pushed,
        Err(refusal) => {
            assert!(
                matches!(refusal, Refusal::Missing { .. }),
                "a full decoder accepts: {refusal}"
            );
            assert!(!expected.is_complete(), "{refusal}: {expected:?}");
            return;
        }
    };
    assert!(expected.is_complete(), "{expected:?}");
    assert_eq!(
        Envelope::decode(&*pushed.envelope().to_bytes()).as_ref(),
        Ok(&expected)
    );
    assert_eq!(pushed.payload().bytes(), bytes);

    for tag_map in [TagMap::Preferred, TagMap::Deprecated] {
        let v2 = v1_to_v2(&pushed.envelope(), tag_map);
        let message = loggregator::Message::parse_envelope(&v2.envelope, Limits { bytes: 1 << 30 });
        let message = message.unwrap_or_else(|error| panic!("the v2 form is well formed: {error}"));
        for form in v2_to_v1(message.facts(0)).iter() {
            let back = form.envelope();
            assert_eq!(back.timestamp.unwrap_or(0), expected.timestamp.unwrap_or(0));
            assert_eq!(form.payload().is_none(), back.missing().is_some());
            assert_eq!(&*back.app_id(), form.app_id());
        }
    }
}

macro_rules! complete {
    ($message:expr; $($field:ident)*; $($inner:ident)*) => {
        $( $message.$field.is_some() && )*
        $( $message.$inner.as_ref().is_none_or(|inner| inner.is_complete()) && )*
        true
    };
}

impl Envelope {
    fn is_complete(&self) -> bool {
        complete!(self; origin event_type;
            http_start_stop log_message value_metric counter_event error container_metric)
    }
}

impl HttpStartStop {
    fn is_complete(&self) -> bool {
        complete!(self; start_timestamp stop_timestamp request_id peer_type method uri
            remote_address user_agent status_code content_length; request_id application_id)
    }
}

impl LogMessage {
    fn is_complete(&self) -> bool {
        complete!(self; message message_type timestamp;)
    }
}

impl ValueMetric {
    fn is_complete(&self) -> bool {
        complete!(self; name value unit;)
    }
}

impl CounterEvent {
    fn is_complete(&self) -> bool {
        complete!(self; name delta;)
    }
}

impl ContainerMetric {
    fn is_complete(&self) -> bool {
        complete!(self; application_id instance_index cpu_percentage memory_bytes disk_bytes;)
    }
}

impl Error {
    fn is_complete(&self) -> bool {
        complete!(self; source code message;)
    }
}

impl Uuid {
    fn is_complete(&self) -> bool {
        complete!(self; low high;)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub origin: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "2")]
    pub event_type: Option<i32>,
    #[prost(int64, optional, tag = "6")]
    pub timestamp: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub http_start_stop: Option<HttpStartStop>,
    #[prost(message, optional, tag = "8")]
    pub log_message: Option<LogMessage>,
    #[prost(message, optional, tag = "9")]
    pub value_metric: Option<ValueMetric>,
    #[prost(message, optional, tag = "10")]
    pub counter_event: Option<CounterEvent>,
    #[prost(message, optional, tag = "11")]
    pub error: Option<Error>,
    #[prost(message, optional, tag = "12")]
    pub container_metric: Option<ContainerMetric>,
    #[prost(bytes = "vec", optional, tag = "13")]
    pub deployment: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "14")]
    pub job: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "15")]
    pub index: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "16")]
    pub ip: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "17")]
    pub tags: Vec<Tag>,
}

impl Envelope {
    /// Tags in one order, so that equal maps are equal lists.
    pub fn sorted(mut self) -> Self {
        self.tags.sort_by(|a, b| a.key.cmp(&b.key));
        self
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Tag {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct LogMessage {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub message: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "2")]
    pub message_type: Option<i32>,
    #[prost(int64, optional, tag = "3")]
    pub timestamp: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub app_id: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "5")]
    pub source_type: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub source_instance: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ValueMetric {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub name: Option<Vec<u8>>,
    /// As bits, so that NaN equals itself.
    #[prost(fixed64, optional, tag = "2")]
    pub value: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub unit: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct CounterEvent {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub name: Option<Vec<u8>>,
    #[prost(uint64, optional, tag = "2")]
    pub delta: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub total: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerMetric {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub application_id: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "2")]
    pub instance_index: Option<i32>,
    #[prost(fixed64, optional, tag = "3")]
    pub cpu_percentage: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub memory_bytes: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub disk_bytes: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    pub memory_bytes_quota: Option<u64>,
    #[prost(uint64, optional, tag = "7")]
    pub disk_bytes_quota: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HttpStartStop {
    #[prost(int64, optional, tag = "1")]
    pub start_timestamp: Option<i64>,
    #[prost(int64, optional, tag = "2")]
    pub stop_timestamp: Option<i64>,
    #[prost(message, optional, tag = "3")]
    pub request_id: Option<Uuid>,
    #[prost(int32, optional, tag = "4")]
    pub peer_type: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub method: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "6")]
    pub uri: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "7")]
    pub remote_address: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "8")]
    pub user_agent: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "9")]
    pub status_code: Option<i32>,
    #[prost(int64, optional, tag = "10")]
    pub content_length: Option<i64>,
    #[prost(message, optional, tag = "12")]
    pub application_id: Option<Uuid>,
    #[prost(int32, optional, tag = "13")]
    pub instance_index: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "14")]
    pub instance_id: Option<Vec<u8>>,
    #[prost(bytes = "vec", repeated, tag = "15")]
    pub forwarded: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Uuid {
    #[prost(uint64, optional, tag = "1")]
    pub low: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub high: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Error {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub source: Option<Vec<u8>>,
    #[prost(int32, optional, tag = "2")]
    pub code: Option<i32>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub message: Option<Vec<u8>>,
}
