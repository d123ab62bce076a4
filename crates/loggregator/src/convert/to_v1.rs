//! v2 to v1.

use std::borrow::Cow;
use std::cell::OnceCell;

use pubsub::Event;

use super::view::{Body, Counter, Log, Metric, TagValue, Timer, View};
use super::{attribute, last_of_each};
use crate::message::Facts;
use crate::schema::Text;
use crate::v1::{
    ContainerMetric, CounterEvent, Envelope, Error, EventType, HttpStartStop, Key, KeyRef,
    LogMessage, MessageType, Method, Payload, PeerType, SYSTEM, Tag, Type, Uuid, ValueMetric,
};

/// Reads a v2 envelope and says what v1 forms it has. Nothing is converted yet.
///
/// ```
/// use loggregator::{Limits, Message, convert, v2};
/// use prost::Message as _;
///
/// let log = v2::envelope::Message::Log(v2::Log { payload: b"hello".to_vec(), r#type: 0 });
/// let envelope = v2::Envelope { source_id: "app".into(), message: Some(log), ..Default::default() };
/// let message = Message::parse_envelope(&envelope.encode_to_vec(), Limits::default())?;
///
/// let forms = convert::v2_to_v1(message.facts(0));
/// let form = forms.iter().next().unwrap();
/// assert_eq!(form.app_id(), b"app");
/// assert_eq!(form.envelope().log_message.unwrap().message.unwrap(), &b"hello"[..]);
/// assert!(form.payload().is_some());
/// # Ok::<(), loggregator::Error>(())
/// ```
pub fn v2_to_v1(envelope: Facts<'_>) -> Forms<'_> {
    let view = View::read(envelope.bytes()).expect("it was checked when it was received");
    Forms::new(view)
}

/// The v1 forms of a v2 envelope.
///
/// ```
/// use loggregator::{Limits, Message, convert};
///
/// // A gauge with the metrics "a" and "b".
/// let gauge = [0x32, 10, 0x0A, 3, 0x0A, 1, b'a', 0x0A, 3, 0x0A, 1, b'b'];
/// let message = Message::parse_envelope(&gauge, Limits::default())?;
/// assert_eq!(convert::v2_to_v1(message.facts(0)).len(), 2);
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug)]
pub struct Forms<'a> {
    view: View<'a>,
    kind: Kind<'a>,
    app_id: Text<'a>,
    /// What all forms have in common, once one of them is converted.
    common: OnceCell<Envelope<'a>>,
}

/// What a v2 envelope becomes.
#[derive(Debug)]
enum Kind<'a> {
    /// Events, and what isn't known, have no v1 form.
    None,
    Log(Log<'a>),
    /// A log that is marked as an error report.
    Error(Log<'a>),
    Counter(Counter<'a>),
    /// A gauge with the five metrics of a container is one, whatever else it has.
    Container(Metrics<'a>),
    /// Any other gauge is as many values as it has metrics.
    Values(Metrics<'a>),
    Timer(Timer<'a>),
}

impl<'a> Forms<'a> {
    fn new(mut view: View<'a>) -> Self {
        let kind = match std::mem::take(&mut view.body) {
            Body::None => Kind::None,
            Body::Log(log) if *view.tag(attribute::V1_TYPE) == *b"Error" => Kind::Error(log),
            Body::Log(log) => Kind::Log(log),
            Body::Counter(counter) => Kind::Counter(counter),
            Body::Timer(timer) => Kind::Timer(timer),
            Body::Gauge(gauge) => {
                let metrics = Metrics::new(gauge.metrics);
                if metrics.are_of_a_container() {
                    Kind::Container(metrics)
                } else {
                    Kind::Values(metrics)
                }
            }
        };
        let app_id = match &kind {
            Kind::Log(_) | Kind::Container(_) => view.source_id.clone(),
            Kind::Timer(_) => match Uuid::from_text(&view.source_id) {
                Some(uuid) => Cow::Owned(uuid.to_text().to_vec()),
                None => Cow::Borrowed(SYSTEM),
            },
            _ => Cow::Borrowed(SYSTEM),
        };
        Forms {
            view,
            kind,
            app_id,
            common: OnceCell::new(),
        }
    }

    /// How many forms there are.
    pub fn len(&self) -> usize {
        match &self.kind {
            Kind::None => 0,
            Kind::Values(metrics) => metrics.0.len(),
            _ => 1,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The forms, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Form<'_, 'a>> {
        (0..self.len()).map(move |index| Form { forms: self, index })
    }

    fn event_type(&self) -> EventType {
        match &self.kind {
            Kind::None | Kind::Timer(_) => EventType::HttpStartStop,
            Kind::Log(_) => EventType::LogMessage,
            Kind::Error(_) => EventType::Error,
            Kind::Counter(_) => EventType::CounterEvent,
            Kind::Container(_) => EventType::ContainerMetric,
            Kind::Values(_) => EventType::ValueMetric,
        }
    }

    /// An envelope without the message that it is about.
    fn common(&self) -> Envelope<'a> {
        let common = self.common.get_or_init(|| {
            let attribute = |key| Some(self.view.tag(key));
            Envelope {
                origin: attribute(attribute::ORIGIN),
                event_type: Some(self.event_type()),
                timestamp: Some(self.view.timestamp),
                deployment: attribute(attribute::DEPLOYMENT),
                job: attribute(attribute::JOB),
                index: attribute(attribute::INDEX),
                ip: attribute(attribute::IP),
                tags: self.tags(),
                ..Default::default()
            }
        });
        common.clone()
    }

    /// Tags become tags, but for those that have a field in v1. Here the deprecated ones win, unlike
    /// in [`View::tag`].
    fn tags(&self) -> Vec<Tag<'a>> {
        let view = &self.view;
        let tags = view.tags.iter().map(|tag| {
            let value = tag.value.clone().unwrap_or_default();
            (tag.key.clone().unwrap_or_default(), value)
        });
        let deprecated = view.deprecated_tags.iter().filter_map(|tag| {
            let value = tag.value.as_ref()?.to_text()?;
            Some((tag.key.clone().unwrap_or_default(), value))
        });
        let mut entries: Vec<(Text<'a>, Text<'a>)> = tags.chain(deprecated).collect();
        if !view.source_id.is_empty() {
            entries.push((attribute::SOURCE_ID.into(), view.source_id.clone()));
        }
        let instance_is_a_tag = matches!(self.kind, Kind::Counter(_) | Kind::Values(_));
        if instance_is_a_tag && !view.instance_id.is_empty() {
            entries.push((attribute::INSTANCE_ID.into(), view.instance_id.clone()));
        }
        let fields: &[&[u8]] = match self.kind {
            Kind::Log(_) => &[attribute::SOURCE_TYPE],
            Kind::Error(_) => &[attribute::SOURCE, attribute::CODE],
            Kind::Timer(_) => &HTTP,
            _ => &[],
        };
        entries.retain(|(key, _)| !ENVELOPE.contains(&&**key) && !fields.contains(&&**key));
        let entries = last_of_each(entries).into_iter();
        entries
            .map(|(key, value)| Tag {
                key: Some(key),
                value: Some(value),
            })
            .collect()
    }

    /// The instance id as a number; 0 if it is none.
    fn instance_index(&self) -> i32 {
        number(&self.view.instance_id).unwrap_or(0)
    }
}

/// One v1 form of a v2 envelope; an event of the tree of v1 subscriptions.
///
/// ```
/// use loggregator::{Limits, Message, convert, v1};
///
/// // A timer has a v1 form, but without a request id it can't be sent.
/// let message = Message::parse_envelope(&[0x3A, 0], Limits::default())?;
/// let forms = convert::v2_to_v1(message.facts(0));
/// let form = forms.iter().next().unwrap();
/// assert_eq!((form.app_id(), form.r#type()), (&b"system"[..], v1::Type::Metric));
/// assert_eq!(form.envelope().missing(), Some("HttpStartStop.request_id"));
/// assert_eq!(form.payload(), None);
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Form<'f, 'a> {
    forms: &'f Forms<'a>,
    index: usize,
}

impl<'f, 'a> Form<'f, 'a> {
    /// The application id as filters see it; see [`Envelope::app_id`].
    pub fn app_id(&self) -> &'f [u8] {
        &self.forms.app_id
    }

    /// What filters tell apart.
    pub fn r#type(&self) -> Type {
        Type::of(self.forms.event_type())
    }

    /// Converts it, whether it is complete or not.
    pub fn envelope(&self) -> Envelope<'a> {
        let forms = self.forms;
        let mut envelope = forms.common();
        match &forms.kind {
            Kind::None => {}
            Kind::Log(log) => envelope.log_message = Some(forms.log_message(log)),
            Kind::Error(log) => envelope.error = Some(forms.error(log)),
            Kind::Counter(counter) => envelope.counter_event = Some(counter_event(counter)),
            Kind::Container(metrics) => {
                envelope.container_metric = Some(forms.container_metric(metrics));
            }
            Kind::Values(metrics) => {
                envelope.value_metric = Some(value_metric(&metrics.0[self.index]));
            }
            Kind::Timer(timer) => envelope.http_start_stop = Some(forms.http_start_stop(timer)),
        }
        envelope
    }

    /// Converts and serializes it; `None` if it lacks a field that v1 requires, so that no consumer
    /// can get it.
    pub fn payload(&self) -> Option<Payload> {
        let envelope = self.envelope();
        envelope
            .missing()
            .is_none()
            .then(|| Payload::new(&envelope.to_bytes()))
    }
}

impl Event<Key> for Form<'_, '_> {
    type Key<'k>
        = KeyRef<'k>
    where
        Self: 'k;

    fn key(&self, depth: usize) -> Option<KeyRef<'_>> {
        KeyRef::at(depth, self.app_id(), self.r#type())
    }
}

/// Tags that are fields of every v1 envelope, or only said what it was.
const ENVELOPE: [&[u8]; 6] = [
    attribute::V1_TYPE,
    attribute::ORIGIN,
    attribute::DEPLOYMENT,
    attribute::JOB,
    attribute::INDEX,
    attribute::IP,
];

/// Tags that are fields of an HTTP request.
const HTTP: [&[u8]; 10] = [
    attribute::PEER_TYPE,
    attribute::METHOD,
    attribute::REQUEST_ID,
    attribute::URI,
    attribute::REMOTE_ADDRESS,
    attribute::USER_AGENT,
    attribute::STATUS_CODE,
    attribute::CONTENT_LENGTH,
    attribute::ROUTING_INSTANCE_ID,
    attribute::FORWARDED,
];

impl<'a> Forms<'a> {
    fn log_message(&self, log: &Log<'a>) -> LogMessage<'a> {
        let is_out = log.r#type.unwrap_or(0) == 0;
        LogMessage {
            // An empty payload counts as none, and then the form is incomplete.
            message: log.payload.clone().filter(|payload| !payload.is_empty()),
            message_type: Some(if is_out {
                MessageType::OUT
            } else {
                MessageType::ERR
            }),
            timestamp: Some(self.view.timestamp),
            app_id: Some(self.view.source_id.clone()),
            source_type: Some(self.view.tag(attribute::SOURCE_TYPE)),
            source_instance: Some(self.view.instance_id.clone()),
        }
    }

    fn error(&self, log: &Log<'a>) -> Error<'a> {
        Error {
            source: Some(self.view.tag(attribute::SOURCE)),
            code: Some(self.number(attribute::CODE) as i32),
            message: Some(log.payload.clone().unwrap_or_default()),
        }
    }

    fn container_metric(&self, metrics: &Metrics<'a>) -> ContainerMetric<'a> {
        let value = |name| metrics.value(name).unwrap_or(0.0);
        let index = metrics.value(b"instance_index").map(to_i32);
        ContainerMetric {
            application_id: Some(self.view.source_id.clone()),
            instance_index: Some(index.unwrap_or_else(|| self.instance_index())),
            cpu_percentage: Some(value(b"cpu")),
            memory_bytes: Some(to_u64(value(b"memory"))),
            disk_bytes: Some(to_u64(value(b"disk"))),
            memory_bytes_quota: Some(to_u64(value(b"memory_quota"))),
            disk_bytes_quota: Some(to_u64(value(b"disk_quota"))),
        }
    }

    fn http_start_stop(&self, timer: &Timer<'a>) -> HttpStartStop<'a> {
        let tag = |key| Some(self.view.tag(key));
        HttpStartStop {
            start_timestamp: Some(timer.start.unwrap_or(0)),
            stop_timestamp: Some(timer.stop.unwrap_or(0)),
            request_id: Uuid::from_text(&self.view.tag(attribute::REQUEST_ID)),
            peer_type: Some(
                PeerType::from_name(&self.view.tag(attribute::PEER_TYPE)).unwrap_or(PeerType(0)),
            ),
            method: Some(Method::from_name(&self.view.tag(attribute::METHOD)).unwrap_or(Method(0))),
            uri: tag(attribute::URI),
            remote_address: tag(attribute::REMOTE_ADDRESS),
            user_agent: tag(attribute::USER_AGENT),
            status_code: Some(self.number(attribute::STATUS_CODE) as i32),
            content_length: Some(self.number(attribute::CONTENT_LENGTH)),
            application_id: Uuid::from_text(&self.view.source_id),
            instance_index: Some(self.instance_index()),
            instance_id: tag(attribute::ROUTING_INSTANCE_ID),
            forwarded: lines(self.view.tag(attribute::FORWARDED)),
        }
    }

    /// The value of a tag as a number; 0 if it is none.
    fn number(&self, key: &[u8]) -> i64 {
        number(&self.view.tag(key)).unwrap_or(0)
    }
}

fn counter_event<'a>(counter: &Counter<'a>) -> CounterEvent<'a> {
    CounterEvent {
        name: Some(counter.name.clone().unwrap_or_default()),
        delta: Some(counter.delta.unwrap_or(0)),
        total: Some(counter.total.unwrap_or(0)),
    }
}

fn value_metric<'a>(metric: &Metric<'a>) -> ValueMetric<'a> {
    let value = metric.value.as_ref();
    ValueMetric {
        name: Some(metric.name.clone().unwrap_or_default()),
        value: Some(value.and_then(|value| value.value).unwrap_or(0.0)),
        unit: Some(
            value
                .and_then(|value| value.unit.clone())
                .unwrap_or_default(),
        ),
    }
}

impl<'a> View<'a> {
    /// The value of a tag, wherever a single value is taken from one: of the preferred tags if it is
    /// there, also empty, else of the deprecated ones; empty if it is in neither.
    fn tag(&self, key: &[u8]) -> Text<'a> {
        if let Some(tag) = self
            .tags
            .iter()
            .rfind(|tag| tag.key.as_deref().unwrap_or_default() == key)
        {
            return tag.value.clone().unwrap_or_default();
        }
        let deprecated = self
            .deprecated_tags
            .iter()
            .rfind(|tag| tag.key.as_deref().unwrap_or_default() == key);
        deprecated
            .and_then(|tag| tag.value.as_ref()?.to_text())
            .unwrap_or_default()
    }
}

impl<'a> TagValue<'a> {
    /// The value as text; `None` if there is none.
    fn to_text(&self) -> Option<Text<'a>> {
        Some(match self {
            TagValue::None => return None,
            TagValue::Text(text) => text.clone(),
            TagValue::Integer(integer) => integer.to_string().into_bytes().into(),
            TagValue::Decimal(decimal) => match *decimal {
                f64::INFINITY => b"+Inf".into(),
                f64::NEG_INFINITY => b"-Inf".into(),
                nan if nan.is_nan() => b"NaN".into(),
                decimal => format!("{decimal:.6}").into_bytes().into(),
            },
        })
    }
}

/// The metrics of a gauge, sorted by name; of equal names only the last is there.
#[derive(Debug)]
struct Metrics<'a>(Vec<Metric<'a>>);

impl<'a> Metrics<'a> {
    fn new(mut metrics: Vec<Metric<'a>>) -> Self {
        metrics.reverse();
        metrics.sort_by(|a, b| name(a).cmp(name(b)));
        metrics.dedup_by(|later, first| name(later) == name(first));
        Metrics(metrics)
    }

    fn find(&self, wanted: &[u8]) -> Option<&Metric<'a>> {
        let index = self
            .0
            .binary_search_by(|metric| name(metric).cmp(wanted))
            .ok()?;
        Some(&self.0[index])
    }

    fn value(&self, name: &[u8]) -> Option<f64> {
        self.find(name).map(|metric| {
            metric
                .value
                .as_ref()
                .and_then(|value| value.value)
                .unwrap_or(0.0)
        })
    }

    /// Whether the five that a container has are there, each with a unit or a value.
    fn are_of_a_container(&self) -> bool {
        [
            &b"cpu"[..],
            b"memory",
            b"disk",
            b"memory_quota",
            b"disk_quota",
        ]
        .iter()
        .all(|name| {
            self.find(name)
                .and_then(|metric| metric.value.as_ref())
                .is_some_and(|value| {
                    value.unit.as_ref().is_some_and(|unit| !unit.is_empty())
                        || value.value.is_some_and(|value| value != 0.0)
                })
        })
    }
}

fn name<'m>(metric: &'m Metric<'_>) -> &'m [u8] {
    metric.name.as_deref().unwrap_or_default()
}

/// A decimal number with an optional sign, and nothing else.
fn number<N: std::str::FromStr>(text: &[u8]) -> Option<N> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A text's lines; an empty text is one empty line.
fn lines(text: Text<'_>) -> Vec<Text<'_>> {
    match text {
        Cow::Borrowed(text) => text
            .split(|byte| *byte == b'\n')
            .map(Cow::Borrowed)
            .collect(),
        Cow::Owned(text) => text
            .split(|byte| *byte == b'\n')
            .map(|line| Cow::Owned(line.to_vec()))
            .collect(),
    }
}

/// Truncates to an unsigned number. What doesn't fit has no right answer; it becomes what the
/// reference makes of it on the usual hardware, so that mixed routers agree: negative numbers wrap,
/// others and NaN are 2^63.
fn to_u64(value: f64) -> u64 {
    const TWO_POW_64: f64 = 18_446_744_073_709_551_616.0;
    const TWO_POW_63: f64 = TWO_POW_64 / 2.0;
    if (0.0..TWO_POW_64).contains(&value) {
        value as u64
    } else if (-TWO_POW_63..0.0).contains(&value) {
        value as i64 as u64
    } else {
        1 << 63
    }
}

/// Truncates to a signed number; what doesn't fit, and NaN, is -2^31, as in [`to_u64`].
fn to_i32(value: f64) -> i32 {
    let truncated = value.trunc();
    if (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&truncated) {
        truncated as i32
    } else {
        i32::MIN
    }
}
