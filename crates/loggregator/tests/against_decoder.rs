//! The raw view against a full decoder, on inputs that nobody thought of: generated fields, mutated
//! vectors and plain noise. The fuzz target does the same without end.

mod support;

use loggregator::v1::Pushed;
use loggregator::{Limits, v2};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use prost::Message as _;
use support::{cases, element, events, oracle};

/// A field as a producer gone wild might send it: any small number, any wire type, content that may
/// be fields again, or text, or noise.
fn field() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![
        8 => "[a-c]{0,3}".prop_map(String::into_bytes),
        2 => "[a-zäß€😀]{0,20}".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..4),
        1 => "[ab]{120,140}".prop_map(String::into_bytes),
    ];
    let leaf = prop_oneof![
        6 => (1..12_u64, text).prop_map(|(number, text)| length_delimited(number, &text)),
        1 => (1..12_u64, any::<u64>()).prop_map(|(number, value)| {
            [varint(number << 3), varint(value)].concat()
        }),
        1 => (1..12_u64).prop_map(|number| [varint(number << 3 | 1), vec![7; 8]].concat()),
        1 => (1..12_u64).prop_map(|number| [varint(number << 3 | 5), vec![7; 4]].concat()),
    ];
    leaf.prop_recursive(5, 64, 8, |field| {
        prop_oneof![
            10 => (1..12_u64, vec(field.clone(), 0..8))
                .prop_map(|(number, fields)| length_delimited(number, &fields.concat())),
            1 => (1..12_u64, vec(field, 0..3)).prop_map(|(number, fields)| {
                [varint(number << 3 | 3), fields.concat(), varint(number << 3 | 4)].concat()
            }),
        ]
    })
}

/// A field of a v1 envelope, often a whole message of a kind, now and then with a field too few.
fn v1_field() -> impl Strategy<Value = Vec<u8>> {
    let text = || prop_oneof![4 => vec(b'a'..b'd', 0..4), 1 => vec(any::<u8>(), 0..4)];
    let text_field =
        move |number: u64| text().prop_map(move |text| length_delimited(number, &text));
    let number_field = |number: u64| {
        prop_oneof![1 => 0..50_u64, 1 => any::<u64>()]
            .prop_map(move |value| [varint(number << 3), varint(value)].concat())
    };
    let double_field = |number: u64| {
        any::<f64>()
            .prop_map(move |value| [varint(number << 3 | 1), value.to_le_bytes().to_vec()].concat())
    };
    let message = |number: u64, fields: Vec<BoxedStrategy<Vec<u8>>>| {
        (
            fields,
            any::<prop::sample::Index>(),
            prop::bool::weighted(0.2),
        )
            .prop_map(move |(mut fields, index, remove)| {
                if remove {
                    fields.remove(index.index(fields.len()));
                }
                length_delimited(number, &fields.concat())
            })
    };
    let numbers = |numbers: &[u64]| {
        numbers
            .iter()
            .map(|n| number_field(*n).boxed())
            .collect::<Vec<_>>()
    };
    let texts = |numbers: &[u64]| {
        numbers
            .iter()
            .map(|n| text_field(*n).boxed())
            .collect::<Vec<_>>()
    };
    let uuid = |number: u64| message(number, numbers(&[1, 2])).boxed();
    let http = [
        numbers(&[1, 2, 4, 5, 9, 10, 13]),
        texts(&[6, 7, 8, 14, 15, 15]),
        vec![uuid(3), uuid(12)],
    ];
    let log = [texts(&[1, 4, 5, 6]), numbers(&[2, 3])];
    let value = [texts(&[1, 3]), vec![double_field(2).boxed()]];
    let counter = [texts(&[1]), numbers(&[2, 3])];
    let error = [texts(&[1, 3]), numbers(&[2])];
    let container = [
        texts(&[1]),
        numbers(&[2, 4, 5, 6, 7]),
        vec![double_field(3).boxed()],
    ];
    prop_oneof![
        message(7, http.concat()),
        message(8, log.concat()),
        message(9, value.concat()),
        message(10, counter.concat()),
        message(11, error.concat()),
        message(12, container.concat()),
        message(17, texts(&[1, 2])),
        text_field(13),
        number_field(6),
        field(),
    ]
}

fn varint(value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(value, &mut bytes);
    bytes
}

fn length_delimited(number: u64, content: &[u8]) -> Vec<u8> {
    [
        varint(number << 3 | 2),
        varint(content.len() as u64),
        content.to_vec(),
    ]
    .concat()
}

/// An envelope as a producer sends it.
fn envelope() -> impl Strategy<Value = v2::Envelope> {
    let text = || prop_oneof![6 => "[a-z._]{0,12}", 1 => "[a-zäß€😀]{0,12}", 1 => "[a-z]{120,300}"];
    let value = prop_oneof![
        3 => text().prop_map(v2::value::Data::Text),
        1 => any::<i64>().prop_map(v2::value::Data::Integer),
        1 => any::<f64>().prop_map(v2::value::Data::Decimal),
    ];
    let value = proptest::option::of(value).prop_map(|data| v2::Value { data });
    let metric = (text(), any::<f64>()).prop_map(|(unit, value)| v2::GaugeValue { unit, value });
    let message = prop_oneof![
        (vec(any::<u8>(), 0..200), 0..3).prop_map(|(payload, r#type)| {
            v2::envelope::Message::Log(v2::Log { payload, r#type })
        }),
        (text(), any::<u64>(), any::<u64>()).prop_map(|(name, delta, total)| {
            v2::envelope::Message::Counter(v2::Counter { name, delta, total })
        }),
        btree_map(text(), metric, 0..40)
            .prop_map(|metrics| v2::envelope::Message::Gauge(v2::Gauge { metrics })),
        (text(), any::<i64>(), any::<i64>()).prop_map(|(name, start, stop)| {
            v2::envelope::Message::Timer(v2::Timer { name, start, stop })
        }),
        (text(), text())
            .prop_map(|(title, body)| v2::envelope::Message::Event(v2::Event { title, body })),
    ];
    (
        any::<i64>(),
        text(),
        text(),
        btree_map(text(), value, 0..6),
        btree_map(text(), text(), 0..8),
        proptest::option::weighted(0.9, message),
    )
        .prop_map(
            |(timestamp, source_id, instance_id, deprecated_tags, tags, message)| v2::Envelope {
                timestamp,
                source_id,
                instance_id,
                deprecated_tags,
                tags,
                message,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn fields_of_any_kind(fields in vec(vec(field(), 0..8), 0..4), batch_fields in vec(field(), 0..2)) {
        let elements = fields.iter().map(|fields| element(&fields.concat()));
        let batch: Vec<u8> = elements.chain(batch_fields).collect::<Vec<_>>().concat();
        oracle::check(&batch);
    }

    #[test]
    fn whole_envelopes(batch in vec(envelope(), 0..5)) {
        let bytes = v2::EnvelopeBatch { batch }.encode_to_vec();
        prop_assert!(oracle::decode(&bytes).is_some());
        oracle::check(&bytes);
    }

    #[test]
    fn broken_envelopes(envelope in envelope(), at in any::<prop::sample::Index>(), byte: u8, cut: bool) {
        let mut bytes = v2::EnvelopeBatch { batch: vec![envelope] }.encode_to_vec();
        let at = at.index(bytes.len());
        if cut { bytes.truncate(at) } else { bytes[at] = byte }
        oracle::check(&bytes);
    }

    #[test]
    fn v1_fields_of_any_kind(fields in vec(v1_field(), 0..10)) {
        // Without these two no envelope is complete.
        let origin = length_delimited(1, b"o");
        let event_type = [0x10, 4 + fields.len() as u8 % 7];
        events::check(&[&origin, &event_type[..], &fields.concat()].concat());
        events::check(&fields.concat());
    }

    #[test]
    fn noise(bytes in vec(any::<u8>(), 0..64)) {
        oracle::check(&bytes);
        oracle::check(&element(&bytes));
        events::check(&bytes);
    }
}

/// One envelope of each kind, as producers send them.
fn usual_envelopes() -> Vec<v2::Envelope> {
    use v2::envelope::Message as Kind;
    let texts = [("origin", "rep"), ("job", "größe"), ("", "")].map(|(k, v)| (k.into(), v.into()));
    let data = [
        v2::value::Data::Text("cell".into()),
        v2::value::Data::Integer(-7),
        v2::value::Data::Decimal(1.5),
    ];
    let typed = ["job", "index", "load"]
        .map(String::from)
        .into_iter()
        .zip(data);
    let metrics = ["cpu", "memory", "disk"].map(|name| {
        let value = v2::GaugeValue {
            unit: "bytes".into(),
            value: 1.5,
        };
        (name.to_owned(), value)
    });
    let envelope = v2::Envelope {
        timestamp: 1_700_000_000_123_456_789,
        source_id: "app".into(),
        instance_id: "4".into(),
        deprecated_tags: typed
            .map(|(key, data)| (key, v2::Value { data: Some(data) }))
            .collect(),
        tags: texts.into(),
        message: None,
    };
    [
        Kind::Log(v2::Log {
            payload: b"hello".to_vec(),
            r#type: 1,
        }),
        Kind::Counter(v2::Counter {
            name: "requests".into(),
            delta: 5,
            total: 1 << 40,
        }),
        Kind::Gauge(v2::Gauge {
            metrics: metrics.into(),
        }),
        Kind::Timer(v2::Timer {
            name: "http".into(),
            start: -1,
            stop: 2,
        }),
        Kind::Event(v2::Event {
            title: "title".into(),
            body: "body".into(),
        }),
    ]
    .map(|message| v2::Envelope {
        message: Some(message),
        ..envelope.clone()
    })
    .into()
}

#[test]
fn every_byte_of_usual_envelopes_changed() {
    for envelope in usual_envelopes() {
        let batch = v2::EnvelopeBatch {
            batch: vec![envelope],
        }
        .encode_to_vec();
        for at in 0..batch.len() {
            let flipped = (0..8).map(|bit| batch[at] ^ 1 << bit);
            for byte in flipped.chain(EDGES).chain([0xFF]) {
                let mut batch = batch.clone();
                batch[at] = byte;
                oracle::check(&batch);
            }
            oracle::check(&batch[..at]);
        }
    }
}

/// How many inputs the smoke runs of the fuzz targets take.
const INPUTS: usize = 100_000;

/// What the fuzz target `message` does, for a fixed number of inputs and always the same ones.
#[test]
fn mutated_vectors() {
    let mut accepted = 0;
    for input in mutations(seeds()).take(INPUTS) {
        accepted += usize::from(oracle::decode(&input).is_some());
        oracle::check(&input);
    }
    assert!(
        (INPUTS / 20..INPUTS / 20 * 19).contains(&accepted),
        "{accepted} of {INPUTS}"
    );
}

/// What the fuzz target `v1` does.
#[test]
fn mutated_v1_vectors() {
    let mut accepted = 0;
    for input in mutations(v1_seeds()).take(INPUTS) {
        accepted += usize::from(Pushed::parse(&input, Limits::default()).is_ok());
        events::check(&input);
    }
    assert!(
        (INPUTS / 20..INPUTS / 20 * 19).contains(&accepted),
        "{accepted} of {INPUTS}"
    );
}

/// Seeds, changed a little at a time.
fn mutations(seeds: Vec<Vec<u8>>) -> impl Iterator<Item = Vec<u8>> {
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    std::iter::from_fn(move || {
        let mut input = random.pick(&seeds).clone();
        for _ in 0..1 + random.below(4) {
            random.mutate(&mut input, &seeds);
        }
        Some(input)
    })
}

/// Every v1 input of the vectors.
fn v1_seeds() -> Vec<Vec<u8>> {
    let wire = cases(include_str!("vectors/wire-decode.jsonl")).into_iter();
    let wire = wire.filter(|case| case["type"] == "events.Envelope");
    let conversion = cases(include_str!("vectors/conversion.jsonl")).into_iter();
    let conversion = conversion.filter(|case| case["direction"] == "v1_to_v2");
    wire.chain(conversion)
        .map(|case| support::bytes(&case, "input_b64"))
        .collect()
}

/// Every v2 input of the vectors, and usual envelopes.
fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for case in cases(include_str!("vectors/wire-decode.jsonl")) {
        let input = support::bytes(&case, "input_b64");
        match case["type"].as_str() {
            Some("loggregator.v2.Envelope") => seeds.push(element(&input)),
            Some("loggregator.v2.EnvelopeBatch") => seeds.push(input),
            _ => {}
        }
    }
    let mut all = Vec::new();
    for case in cases(include_str!("vectors/routing.jsonl")) {
        if case["api"] == "v2" {
            let envelope = element(&support::bytes(&case, "publish_b64"));
            all.extend_from_slice(&envelope);
            seeds.push(envelope);
        }
    }
    seeds.push(all);
    let usual = usual_envelopes();
    seeds.extend(
        usual
            .iter()
            .map(|envelope| element(&envelope.encode_to_vec())),
    );
    seeds.push(v2::EnvelopeBatch { batch: usual }.encode_to_vec());
    seeds
}

/// Gives cargo-fuzz something to start from; see `fuzz/README.md`.
#[test]
#[ignore = "writes files"]
fn write_fuzz_corpus() {
    for (target, seeds) in [("message", seeds()), ("v1", v1_seeds())] {
        let corpus = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        std::fs::create_dir_all(&corpus).unwrap();
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(format!("{corpus}/seed-{number:03}"), seed).unwrap();
        }
    }
}

/// Bytes that mean something: small numbers, keys, the edge of one-byte lengths.
const EDGES: [u8; 12] = [
    0, 1, 2, 0x0A, 0x12, 0x1A, 0x22, 0x2A, 0x32, 0x4A, 0x7F, 0x80,
];

/// Xorshift: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn mutate(&mut self, input: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        let at = self.below(input.len() + 1);
        match self.below(7) {
            0 => input.insert(at, self.below(256) as u8),
            1 => input.insert(at, *self.pick(&EDGES)),
            2 if at < input.len() => drop(input.remove(at)),
            3 if at < input.len() => input[at] ^= 1 << self.below(8),
            4 if at < input.len() => input[at] = *self.pick(&EDGES),
            5 => input.truncate(at.max(1)),
            6 => input.extend(self.pick(seeds)),
            _ => {}
        }
    }
}
