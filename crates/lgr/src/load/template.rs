//! Envelopes that are prepared once and patched for each use: in a batch of a hundred nothing is
//! encoded, only a timestamp, a source id and a number are written over the previous ones.

use std::collections::BTreeMap;

use loggregator::v1;
use loggregator::v2::{self, envelope::Message};
use prost::Message as _;

use lgr::numbered::{Number, TAG, write_hex};

/// The kinds of envelopes, in the order that their indices refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Log,
    Counter,
    Gauge,
    Timer,
    Event,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [
        Self::Log,
        Self::Counter,
        Self::Gauge,
        Self::Timer,
        Self::Event,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Timer => "timer",
            Self::Event => "event",
        }
    }
}

/// The name of all counters, the metrics of all gauges.
pub(crate) const COUNTER: &str = "requests";
pub(crate) const GAUGE: [&str; 2] = ["cpu", "memory"];

/// The number of tags, the one with the envelope's number included.
const TAGS: [(&str, &str); 5] = [
    ("deployment", "loggregator"),
    ("job", "lgr"),
    ("index", "0123456789abcdef0123"),
    ("ip", "127.0.0.1"),
    ("origin", "lgr"),
];

/// The source id with an index: of the length and form of an application's.
pub(crate) fn source_id(index: u32) -> String {
    let mut id = *b"6c677200-0000-4000-8000-000000000000";
    write_hex(&mut id[24..], index.into());
    id.iter().copied().map(char::from).collect()
}

/// Bytes of a source id that differ.
const SOURCE: usize = 24;

/// Which API's envelopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Api {
    /// Loggregator v1: logs, counters and gauges of one metric, one envelope per message
    V1,
    /// Loggregator v2
    #[default]
    V2,
}

impl Api {
    /// The metrics of this API's gauges.
    pub(crate) fn gauge(self) -> &'static [&'static str] {
        match self {
            Self::V1 => &GAUGE[..1],
            Self::V2 => &GAUGE,
        }
    }

    /// Whether this API's envelopes of a kind have exactly one form in the other API, too.
    pub(crate) fn translates(self, kind: Kind) -> bool {
        match kind {
            Kind::Log | Kind::Counter => true,
            Kind::Gauge => self == Self::V1,
            Kind::Timer | Kind::Event => false,
        }
    }
}

/// One envelope of a kind as an element of a batch, with the places to patch. (A v1 message has the
/// form of a batch of one.)
#[derive(Clone, Debug)]
pub(crate) struct Template {
    bytes: Vec<u8>,
    timestamp: usize,
    source: usize,
    number: usize,
}

/// A timestamp of our century takes nine bytes; so does every other in this form.
const TIMESTAMP: usize = 9;

impl Template {
    /// # Panics
    /// If the API has no such kind, which [`Api::translates`] tells for v1.
    pub(crate) fn new(api: Api, kind: Kind, payload: usize, run: u32) -> Self {
        let number = Number {
            run,
            series: 0,
            sequence: 0,
        }
        .to_string();
        let source = source_id(0);
        let bytes = match api {
            Api::V1 => v1_message(kind, payload, &source, &number),
            Api::V2 => v2_message(kind, payload, &source, &number),
        };
        let find = |text: &[u8]| {
            let position = bytes.windows(text.len()).position(|window| window == text);
            position.expect("a field that was just encoded")
        };
        // The key of the timestamp's field makes the difference to other times.
        let mut timestamp = vec![match api {
            Api::V1 => 6 << 3,
            Api::V2 => 1 << 3,
        }];
        timestamp.extend(varint(PLACEHOLDER));
        Self {
            timestamp: find(&timestamp) + 1,
            source: find(source.as_bytes()) + SOURCE,
            number: find(number.as_bytes()),
            bytes,
        }
    }

    /// The element: tag, length, envelope.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn set_timestamp(&mut self, nanoseconds: i64) {
        self.bytes[self.timestamp..self.timestamp + TIMESTAMP]
            .copy_from_slice(&varint(nanoseconds));
    }

    pub(crate) fn set_source(&mut self, index: u32) {
        write_hex(&mut self.bytes[self.source..self.source + 12], index.into());
    }

    pub(crate) fn set_series(&mut self, series: u32) {
        let start = self.number + Number::SERIES;
        write_hex(&mut self.bytes[start..start + 8], series.into());
    }

    pub(crate) fn set_sequence(&mut self, sequence: u64) {
        let start = self.number + Number::SEQUENCE;
        write_hex(&mut self.bytes[start..self.number + Number::LEN], sequence);
    }
}

/// A timestamp as a varint; the bits of negative ones and of those after 2262 don't fit.
fn varint(nanoseconds: i64) -> [u8; TIMESTAMP] {
    let mut bytes = [0; TIMESTAMP];
    let mut rest = nanoseconds as u64;
    for byte in &mut bytes[..TIMESTAMP - 1] {
        *byte = 0x80 | rest as u8;
        rest >>= 7;
    }
    bytes[TIMESTAMP - 1] = rest as u8 & 0x7F;
    bytes
}

/// Any timestamp that takes nine bytes.
const PLACEHOLDER: i64 = 1 << 60;

fn v2_message(kind: Kind, payload: usize, source: &str, number: &str) -> Vec<u8> {
    let message = match kind {
        Kind::Log => Message::Log(v2::Log {
            payload: vec![b'.'; payload],
            r#type: 0,
        }),
        Kind::Counter => Message::Counter(v2::Counter {
            name: COUNTER.to_owned(),
            delta: 1,
            total: 1,
        }),
        Kind::Gauge => {
            let value = v2::GaugeValue {
                unit: "percentage".to_owned(),
                value: 50.0,
            };
            let metrics = GAUGE.map(|name| (name.to_owned(), value.clone())).into();
            Message::Gauge(v2::Gauge { metrics })
        }
        Kind::Timer => Message::Timer(v2::Timer {
            name: "http".to_owned(),
            start: PLACEHOLDER,
            stop: PLACEHOLDER + 1_000_000,
        }),
        Kind::Event => Message::Event(v2::Event {
            title: "load".to_owned(),
            body: ".".repeat(payload),
        }),
    };
    let mut tags: BTreeMap<_, _> = TAGS
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    tags.insert(TAG.to_owned(), number.to_owned());
    let envelope = v2::Envelope {
        timestamp: PLACEHOLDER,
        source_id: source.to_owned(),
        instance_id: "0".to_owned(),
        message: Some(message),
        tags,
        ..v2::Envelope::default()
    };
    v2::EnvelopeBatch {
        batch: vec![envelope],
    }
    .encode_to_vec()
}

fn v1_message(kind: Kind, payload: usize, source: &str, number: &str) -> Vec<u8> {
    let payload = vec![b'.'; payload];
    let attribute = |wanted: &str| {
        let (_, value) = TAGS.iter().find(|(name, _)| *name == wanted)?;
        Some(value.as_bytes().into())
    };
    let tag = |name: &'static str, value: &str| v1::Tag {
        key: Some(name.as_bytes().into()),
        value: Some(value.as_bytes().to_vec().into()),
    };
    let mut envelope = v1::Envelope {
        origin: attribute("origin"),
        timestamp: Some(PLACEHOLDER),
        deployment: attribute("deployment"),
        job: attribute("job"),
        index: attribute("index"),
        ip: attribute("ip"),
        tags: vec![
            tag(TAG, number),
            tag("instance_id", "0"),
            tag("source_id", source),
        ],
        ..v1::Envelope::default()
    };
    match kind {
        Kind::Log => {
            envelope.event_type = Some(v1::EventType::LogMessage);
            envelope.log_message = Some(v1::LogMessage {
                message: Some((&payload[..]).into()),
                message_type: Some(v1::MessageType::OUT),
                timestamp: Some(PLACEHOLDER),
                ..v1::LogMessage::default()
            });
        }
        Kind::Counter => {
            envelope.event_type = Some(v1::EventType::CounterEvent);
            envelope.counter_event = Some(v1::CounterEvent {
                name: Some(COUNTER.as_bytes().into()),
                delta: Some(1),
                total: Some(1),
            });
        }
        Kind::Gauge => {
            envelope.event_type = Some(v1::EventType::ValueMetric);
            envelope.value_metric = Some(v1::ValueMetric {
                name: Some(GAUGE[0].as_bytes().into()),
                value: Some(50.0),
                unit: Some(b"percentage".into()),
            });
        }
        Kind::Timer | Kind::Event => unreachable!("v1 has no such kind"),
    }
    v1::plumbing::EnvelopeData {
        payload: envelope.to_bytes().into(),
    }
    .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_show_in_the_envelope_and_nowhere_else() {
        for kind in Kind::ALL {
            let mut template = Template::new(Api::V2, kind, 128, 7);
            let before = v2::EnvelopeBatch::decode(template.bytes())
                .unwrap()
                .batch
                .remove(0);
            template.set_timestamp(1_785_585_600_123_456_789);
            template.set_source(0xabc);
            template.set_series(3);
            template.set_sequence(0x1234);
            let after = v2::EnvelopeBatch::decode(template.bytes())
                .unwrap()
                .batch
                .remove(0);

            let mut expected = before;
            expected.timestamp = 1_785_585_600_123_456_789;
            expected.source_id = "6c677200-0000-4000-8000-000000000abc".to_owned();
            let number = Number {
                run: 7,
                series: 3,
                sequence: 0x1234,
            };
            expected.tags.insert(TAG.to_owned(), number.to_string());
            assert_eq!(after, expected, "{kind:?}");
            assert_eq!(after.source_id, source_id(0xabc));
            assert_eq!(Number::of(&after), Some(number));
            assert_eq!(after.tags.len(), 6);
        }
    }

    #[test]
    fn v1_envelopes_are_patched_in_the_same_places() {
        for kind in Kind::ALL
            .into_iter()
            .filter(|&kind| Api::V1.translates(kind))
        {
            let mut template = Template::new(Api::V1, kind, 128, 7);
            template.set_timestamp(1_785_585_600_123_456_789);
            template.set_source(0xabc);
            template.set_series(3);
            template.set_sequence(0x1234);
            let message = v1::plumbing::EnvelopeData::decode(template.bytes()).unwrap();
            let envelope =
                v1::Envelope::parse(&message.payload, loggregator::Limits::default()).unwrap();
            assert_eq!(envelope.missing(), None, "{kind:?}");
            assert_eq!(envelope.timestamp, Some(1_785_585_600_123_456_789));
            assert_eq!(
                envelope.tag(b"source_id"),
                Some(source_id(0xabc).as_bytes())
            );
            let number = Number::parse(envelope.tag(TAG.as_bytes()).unwrap());
            assert_eq!(
                number,
                Some(Number {
                    run: 7,
                    series: 3,
                    sequence: 0x1234
                })
            );
            if let Some(log) = envelope.log_message {
                assert_eq!(
                    log.timestamp,
                    Some(PLACEHOLDER),
                    "only the envelope's is patched"
                );
            }
        }
    }

    /// The envelope that all published figures are about.
    #[test]
    fn the_reference_envelope_has_about_330_bytes() {
        let length = Template::new(Api::V2, Kind::Log, 128, 0).bytes().len();
        assert!((320..=340).contains(&length), "{length}");
    }
}
