//! v1 to v2.

use std::borrow::Cow;

use super::view::{
    Body, Counter, DeprecatedTag, Gauge, GaugeValue, Log, Metric, Tag, TagValue, Timer, View,
};
use super::{attribute, last_of_each};
use crate::schema::Text;
use crate::v1::{Envelope, EventType, MessageType};

/// Which of the two tag maps of a v2 envelope is filled.
///
/// ```
/// assert_eq!(loggregator::convert::TagMap::default(), loggregator::convert::TagMap::Preferred);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TagMap {
    /// `tags`, which is what routers fill.
    #[default]
    Preferred,
    /// `deprecated_tags`, with text values, as old agents do.
    Deprecated,
}

/// The v2 form of a v1 envelope.
///
/// ```
/// use loggregator::{Limits, convert::{TagMap, v1_to_v2}, v1::Envelope};
///
/// // The origin is not UTF-8.
/// let envelope = Envelope::parse(&[0x0A, 1, 0xFF, 0x10, 6], Limits::default())?;
/// let converted = v1_to_v2(&envelope, TagMap::Preferred);
/// assert_eq!(converted.repaired, 1);
/// # Ok::<(), loggregator::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Converted {
    /// The serialized v2 `Envelope`, always well formed.
    pub envelope: Vec<u8>,
    /// How many texts weren't UTF-8 and had to be repaired: what is none was replaced by U+FFFD.
    pub repaired: usize,
}

/// Converts a v1 envelope.
///
/// ```
/// use loggregator::{Kind, Limits, Message, convert::{TagMap, v1_to_v2}, v1};
///
/// let envelope = v1::Envelope {
///     event_type: Some(v1::EventType::CounterEvent),
///     counter_event: Some(v1::CounterEvent {
///         name: Some(b"requests".into()),
///         delta: Some(3),
///         total: Some(30),
///     }),
///     deployment: Some(b"cf".into()),
///     job: Some(b"router".into()),
///     ..Default::default()
/// };
/// let converted = v1_to_v2(&envelope, TagMap::Preferred);
/// let message = Message::parse_envelope(&converted.envelope, Limits::default())?;
/// assert_eq!(message.facts(0).kind(), Some(Kind::Counter));
/// assert_eq!(message.facts(0).source_id(), "cf/router");
/// # Ok::<(), loggregator::Error>(())
/// ```
pub fn v1_to_v2(envelope: &Envelope<'_>, tag_map: TagMap) -> Converted {
    let mut form = Form::of(envelope);
    let mut repaired = 0;
    let mut repair = |text: &mut Text<'_>| {
        if let Cow::Owned(mended) = String::from_utf8_lossy(text) {
            *text = Cow::Owned(mended.into_bytes());
            repaired += 1;
        }
    };
    repair(&mut form.source_id);
    repair(&mut form.instance_id);
    for (key, value) in &mut form.tags {
        repair(key);
        repair(value);
    }
    match &mut form.body {
        Body::Counter(counter) => counter.name.iter_mut().for_each(&mut repair),
        Body::Gauge(gauge) => {
            for metric in &mut gauge.metrics {
                metric.name.iter_mut().for_each(&mut repair);
                let units = metric
                    .value
                    .iter_mut()
                    .filter_map(|value| value.unit.as_mut());
                units.for_each(&mut repair);
            }
        }
        // A log's payload may be anything, and a timer's name is ours.
        Body::None | Body::Log(_) | Body::Timer(_) => {}
    }
    Converted {
        envelope: form.into_view(tag_map).to_bytes(),
        repaired,
    }
}

/// A v2 envelope whose tags aren't in a map yet.
#[derive(Default)]
struct Form<'a> {
    timestamp: i64,
    source_id: Text<'a>,
    instance_id: Text<'a>,
    tags: Vec<(Text<'a>, Text<'a>)>,
    body: Body<'a>,
}

impl<'a> Form<'a> {
    fn of(envelope: &Envelope<'a>) -> Self {
        let event_type = envelope.event_type.unwrap_or_default();
        let mut form = Form {
            timestamp: envelope.timestamp.unwrap_or(0),
            ..Form::default()
        };
        form.set_source(envelope);
        form.set_common_tags(envelope, event_type);
        match event_type {
            EventType::LogMessage => form.set_log(envelope),
            EventType::HttpStartStop => form.set_timer(envelope),
            EventType::ValueMetric => form.set_value(envelope),
            EventType::CounterEvent => form.set_counter(envelope),
            EventType::Error => form.set_error(envelope),
            EventType::ContainerMetric => form.set_container(envelope),
            _ => {}
        }
        form
    }

    /// The source id, unless an application says better: a tag, also an empty one, or who sent it.
    fn set_source(&mut self, envelope: &Envelope<'a>) {
        self.source_id = tag(envelope, attribute::SOURCE_ID).unwrap_or_else(|| {
            let deployment = envelope.deployment.as_deref().unwrap_or_default();
            let job = envelope.job.as_deref().unwrap_or_default();
            Cow::Owned([deployment, b"/", job].concat())
        });
    }

    fn set_common_tags(&mut self, envelope: &Envelope<'a>, event_type: EventType) {
        let moved = |key: &Text<'_>| {
            **key == *attribute::SOURCE_ID
                || event_type == EventType::CounterEvent && **key == *attribute::INSTANCE_ID
        };
        let tags = envelope.tags.iter().map(|tag| {
            let value = tag.value.clone().unwrap_or_default();
            (tag.key.clone().unwrap_or_default(), value)
        });
        self.tags = tags.filter(|(key, _)| !moved(key)).collect();
        for (key, value) in [
            (attribute::ORIGIN, &envelope.origin),
            (attribute::DEPLOYMENT, &envelope.deployment),
            (attribute::JOB, &envelope.job),
            (attribute::INDEX, &envelope.index),
            (attribute::IP, &envelope.ip),
        ] {
            self.set_tag(key, value.clone().unwrap_or_default());
        }
        self.set_tag(attribute::V1_TYPE, text(event_type.to_text()));
    }

    fn set_tag(&mut self, key: &'static [u8], value: Text<'a>) {
        self.tags.push((key.into(), value));
    }

    fn set_log(&mut self, envelope: &Envelope<'a>) {
        let log = envelope.log_message.clone().unwrap_or_default();
        if let Some(app_id) = log.app_id.filter(|app_id| !app_id.is_empty()) {
            self.source_id = app_id;
        }
        self.instance_id = log.source_instance.unwrap_or_default();
        self.set_tag(attribute::SOURCE_TYPE, log.source_type.unwrap_or_default());
        self.body = Body::Log(Log {
            payload: log.message,
            r#type: (log.message_type == Some(MessageType::ERR)).then_some(1),
        });
    }

    fn set_timer(&mut self, envelope: &Envelope<'a>) {
        let http = envelope.http_start_stop.clone().unwrap_or_default();
        if let Some(app_id) = http.application_id.filter(|app_id| !app_id.is_zero()) {
            self.source_id = Cow::Owned(app_id.to_text().to_vec());
        }
        self.instance_id = decimal(http.instance_index.unwrap_or(0));
        let request_id = http.request_id.unwrap_or_default().to_text();
        self.set_tag(attribute::REQUEST_ID, Cow::Owned(request_id.to_vec()));
        self.set_tag(
            attribute::PEER_TYPE,
            text(http.peer_type.unwrap_or_default().to_text()),
        );
        self.set_tag(
            attribute::METHOD,
            text(http.method.unwrap_or_default().to_text()),
        );
        self.set_tag(attribute::URI, http.uri.unwrap_or_default());
        self.set_tag(
            attribute::REMOTE_ADDRESS,
            http.remote_address.unwrap_or_default(),
        );
        self.set_tag(attribute::USER_AGENT, http.user_agent.unwrap_or_default());
        self.set_tag(
            attribute::STATUS_CODE,
            decimal(http.status_code.unwrap_or(0)),
        );
        self.set_tag(
            attribute::CONTENT_LENGTH,
            decimal(http.content_length.unwrap_or(0)),
        );
        self.set_tag(
            attribute::ROUTING_INSTANCE_ID,
            http.instance_id.unwrap_or_default(),
        );
        self.set_tag(
            attribute::FORWARDED,
            Cow::Owned(http.forwarded.join(&b'\n')),
        );
        self.body = Body::Timer(Timer {
            name: Some(b"http".into()),
            start: http.start_timestamp,
            stop: http.stop_timestamp,
        });
    }

    fn set_value(&mut self, envelope: &Envelope<'a>) {
        self.instance_id = tag(envelope, attribute::INSTANCE_ID).unwrap_or_default();
        let value = envelope.value_metric.clone().unwrap_or_default();
        let metric = metric(
            value.name.unwrap_or_default(),
            value.unit.unwrap_or_default(),
            value.value.unwrap_or(0.0),
        );
        self.body = Body::Gauge(Gauge {
            metrics: vec![metric],
        });
    }

    fn set_counter(&mut self, envelope: &Envelope<'a>) {
        self.instance_id = tag(envelope, attribute::INSTANCE_ID).unwrap_or_default();
        let counter = envelope.counter_event.clone().unwrap_or_default();
        self.body = Body::Counter(Counter {
            name: counter.name,
            delta: counter.delta,
            total: counter.total,
        });
    }

    fn set_error(&mut self, envelope: &Envelope<'a>) {
        let error = envelope.error.clone().unwrap_or_default();
        self.set_tag(attribute::SOURCE, error.source.unwrap_or_default());
        self.set_tag(attribute::CODE, decimal(error.code.unwrap_or(0)));
        self.body = Body::Log(Log {
            payload: error.message,
            r#type: None,
        });
    }

    fn set_container(&mut self, envelope: &Envelope<'a>) {
        let container = envelope.container_metric.clone().unwrap_or_default();
        if let Some(app_id) = container.application_id.filter(|app_id| !app_id.is_empty()) {
            self.source_id = app_id;
        }
        self.instance_id = decimal(container.instance_index.unwrap_or(0));
        let bytes = |name: &'static [u8], value: Option<u64>| {
            metric(name.into(), b"bytes".into(), value.unwrap_or(0) as f64)
        };
        let cpu = container.cpu_percentage.unwrap_or(0.0);
        self.body = Body::Gauge(Gauge {
            metrics: vec![
                metric(b"cpu".into(), b"percentage".into(), cpu),
                bytes(b"memory", container.memory_bytes),
                bytes(b"disk", container.disk_bytes),
                bytes(b"memory_quota", container.memory_bytes_quota),
                bytes(b"disk_quota", container.disk_bytes_quota),
            ],
        });
    }

    fn into_view(self, tag_map: TagMap) -> View<'a> {
        let tags = last_of_each(self.tags).into_iter();
        let mut view = View {
            timestamp: self.timestamp,
            source_id: self.source_id,
            instance_id: self.instance_id,
            body: self.body,
            ..View::default()
        };
        match tag_map {
            TagMap::Preferred => {
                view.tags = tags
                    .map(|(key, value)| Tag {
                        key: Some(key),
                        value: Some(value),
                    })
                    .collect();
            }
            TagMap::Deprecated => {
                let tags = tags.map(|(key, value)| DeprecatedTag {
                    key: Some(key),
                    value: Some(TagValue::Text(value)),
                });
                view.deprecated_tags = tags.collect();
            }
        }
        view
    }
}

/// The value of a tag, if it is there.
fn tag<'a>(envelope: &Envelope<'a>, key: &[u8]) -> Option<Text<'a>> {
    let tag = envelope
        .tags
        .iter()
        .rfind(|tag| tag.key.as_deref().unwrap_or_default() == key)?;
    Some(tag.value.clone().unwrap_or_default())
}

fn metric<'a>(name: Text<'a>, unit: Text<'a>, value: f64) -> Metric<'a> {
    Metric {
        name: Some(name),
        value: Some(GaugeValue {
            unit: Some(unit),
            value: Some(value),
        }),
    }
}

fn decimal<'a>(number: impl ToString) -> Text<'a> {
    Cow::Owned(number.to_string().into_bytes())
}

fn text<'a>(text: Cow<'static, str>) -> Text<'a> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}
