//! Envelopes that are prepared once and patched for each use: in a batch of a hundred nothing is
//! encoded, only a timestamp, a source id and a number are written over the previous ones.

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

/// One envelope of a kind as an element of a batch, with the places to patch.
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
    pub(crate) fn new(kind: Kind, payload: usize, run: u32) -> Self {
        let number = Number {
            run,
            series: 0,
            sequence: 0,
        }
        .to_string();
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
        let mut tags: std::collections::BTreeMap<_, _> = TAGS
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        tags.insert(TAG.to_owned(), number.clone());
        let source = source_id(0);
        let envelope = v2::Envelope {
            timestamp: PLACEHOLDER,
            source_id: source.clone(),
            instance_id: "0".to_owned(),
            message: Some(message),
            tags,
            ..v2::Envelope::default()
        };
        let bytes = v2::EnvelopeBatch {
            batch: vec![envelope],
        }
        .encode_to_vec();
        // The timestamp is the first field, the source id the second; only the tag has the number.
        let find = |text: &[u8]| {
            let position = bytes.windows(text.len()).position(|window| window == text);
            position.expect("a field that was just encoded")
        };
        let source = find(source.as_bytes());
        let (timestamp, number) = (source - 2 - TIMESTAMP, find(number.as_bytes()));
        Self {
            timestamp,
            source: source + SOURCE,
            number,
            bytes,
        }
    }

    /// The element: tag, length, envelope.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn set_timestamp(&mut self, nanoseconds: i64) {
        let mut rest = nanoseconds as u64;
        let place = &mut self.bytes[self.timestamp..self.timestamp + TIMESTAMP];
        for byte in &mut place[..TIMESTAMP - 1] {
            *byte = 0x80 | rest as u8;
            rest >>= 7;
        }
        place[TIMESTAMP - 1] = rest as u8 & 0x7F;
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

/// Any timestamp that takes nine bytes.
const PLACEHOLDER: i64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_show_in_the_envelope_and_nowhere_else() {
        for kind in Kind::ALL {
            let mut template = Template::new(kind, 128, 7);
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

    /// The envelope that all published figures are about.
    #[test]
    fn the_reference_envelope_has_about_330_bytes() {
        let length = Template::new(Kind::Log, 128, 0).bytes().len();
        assert!((320..=340).contains(&length), "{length}");
    }
}
