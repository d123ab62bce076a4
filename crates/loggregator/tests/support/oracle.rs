//! A full decoder as the judge of the raw view: prost, with its differences made explicit.
//!
//! There is one: prost refuses a known field number that comes with another wire type, where the
//! reference (and most implementations) treat it as an unknown field. So before prost sees the
//! input, such fields get a number that is unknown in every message, [`UNKNOWN`], and stay what they
//! are otherwise. Whatever is malformed is left alone for prost to find.
//!
//! Used by the tests, and by the fuzz targets by path.

use std::collections::BTreeSet;

use loggregator::convert::v2_to_v1;
use loggregator::v1::Pushed;
use loggregator::{Facts, Kind, Limits, Message, v2};
use prost::Message as _;
use prost::encoding::{decode_varint, encode_varint};

/// A field number that no message of the schema has.
const UNKNOWN: u64 = 1000;

/// The known fields of a message: number, wire type, and the fields of the message in it.
pub type Schema = &'static [(u64, u64, Option<&'static Fields>)];
pub struct Fields(pub Schema);

const VALUE: Fields = Fields(&[(1, 2, None), (2, 0, None), (3, 1, None)]);
const DEPRECATED_TAG: Fields = Fields(&[(1, 2, None), (2, 2, Some(&VALUE))]);
const TAG: Fields = Fields(&[(1, 2, None), (2, 2, None)]);
const LOG: Fields = Fields(&[(1, 2, None), (2, 0, None)]);
const COUNTER: Fields = Fields(&[(1, 2, None), (2, 0, None), (3, 0, None)]);
const GAUGE_VALUE: Fields = Fields(&[(1, 2, None), (2, 1, None)]);
const METRIC: Fields = Fields(&[(1, 2, None), (2, 2, Some(&GAUGE_VALUE))]);
const GAUGE: Fields = Fields(&[(1, 2, Some(&METRIC))]);
const TIMER: Fields = Fields(&[(1, 2, None), (2, 0, None), (3, 0, None)]);
const EVENT: Fields = Fields(&[(1, 2, None), (2, 2, None)]);
const ENVELOPE: Fields = Fields(&[
    (1, 0, None),
    (2, 2, None),
    (3, 2, Some(&DEPRECATED_TAG)),
    (4, 2, Some(&LOG)),
    (5, 2, Some(&COUNTER)),
    (6, 2, Some(&GAUGE)),
    (7, 2, Some(&TIMER)),
    (8, 2, None),
    (9, 2, Some(&TAG)),
    (10, 2, Some(&EVENT)),
]);
const BATCH: Fields = Fields(&[(1, 2, Some(&ENVELOPE))]);

/// What a full decoder makes of an `EnvelopeBatch`; `None` if it refuses it.
pub fn decode(bytes: &[u8]) -> Option<v2::EnvelopeBatch> {
    v2::EnvelopeBatch::decode(&*renumbered(bytes, BATCH.0)).ok()
}

/// The input with fields of unexpected wire types made unknown ones.
pub fn renumbered(bytes: &[u8], schema: Schema) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let whole = rest;
        if field(&mut rest, schema, &mut out).is_none() {
            // Malformed: prost shall see it as it is.
            out.extend_from_slice(whole);
            break;
        }
    }
    out
}

fn field(rest: &mut &[u8], schema: Schema, out: &mut Vec<u8>) -> Option<()> {
    let start = *rest;
    let key = decode_varint(rest).ok()?;
    let (number, wire_type) = (key >> 3, key & 7);
    let value = value(rest, number, wire_type)?;
    match schema.iter().find(|field| field.0 == number) {
        Some((_, expected, Some(fields))) if *expected == wire_type => {
            let inner = renumbered(value, fields.0);
            encode_varint(key, out);
            encode_varint(inner.len() as u64, out);
            out.extend_from_slice(&inner);
        }
        Some((_, expected, _)) if *expected != wire_type => {
            encode_varint(UNKNOWN << 3 | wire_type, out);
            match wire_type {
                2 => encode_varint(value.len() as u64, out),
                3 => {
                    out.extend_from_slice(value);
                    encode_varint(UNKNOWN << 3 | 4, out);
                    return Some(());
                }
                _ => {}
            }
            out.extend_from_slice(value);
        }
        _ => out.extend_from_slice(&start[..start.len() - rest.len()]),
    }
    Some(())
}

/// Takes a value; of a length-delimited one its content, of a group what is before its end.
fn value<'a>(rest: &mut &'a [u8], number: u64, wire_type: u64) -> Option<&'a [u8]> {
    let start = *rest;
    match wire_type {
        0 => drop(decode_varint(rest).ok()?),
        1 => *rest = rest.get(8..)?,
        5 => *rest = rest.get(4..)?,
        2 => {
            let len = usize::try_from(decode_varint(rest).ok()?).ok()?;
            let (content, behind) = rest.split_at_checked(len)?;
            *rest = behind;
            return Some(content);
        }
        3 => {
            let mut open = vec![number];
            loop {
                let before = *rest;
                let key = decode_varint(rest).ok()?;
                match key & 7 {
                    3 => open.push(key >> 3),
                    4 if open.pop() != Some(key >> 3) => return None,
                    4 if open.is_empty() => return Some(&start[..start.len() - before.len()]),
                    4 => {}
                    other => drop(value(rest, key >> 3, other)?),
                }
            }
        }
        _ => return None,
    }
    Some(&start[..start.len() - rest.len()])
}

/// Holds the raw view of `bytes` against the full decoder: same verdict, same facts, stored bytes
/// that mean the same, in every way of storing them, and v1 forms with the same content.
///
/// # Panics
///
/// If there is a difference.
pub fn check(bytes: &[u8]) {
    let limits = Limits::default();
    let message = Message::parse(bytes, limits);
    let kept = Message::from_vec(bytes.to_vec(), limits);
    assert_eq!(kept.as_ref().err(), message.as_ref().err());
    let Some(expected) = decode(bytes) else {
        assert!(message.is_err(), "a full decoder refuses this");
        return;
    };
    let message = message.unwrap_or_else(|error| panic!("a full decoder accepts this: {error}"));

    assert_eq!(message.len(), expected.batch.len());
    let whole = message.whole();
    let kept = kept.expect("copied or kept is the same");
    assert_eq!(kept.whole().bytes(), whole.bytes());
    same(
        &decode(whole.bytes()).expect("stored bytes are well formed"),
        &expected,
    );
    for (index, envelope) in expected.batch.iter().enumerate() {
        let facts = message.facts(index);
        same_facts(facts, envelope);
        same_facts(kept.facts(index), envelope);
        same_forms(facts, envelope);
        let alone = Message::parse_envelope(facts.bytes(), limits).expect("well formed alone");
        same_facts(alone.facts(0), envelope);
        let selected = message.select([index..index + 1, 0..0, 0..index]);
        same_facts(selected.facts(0), envelope);
        if index > 0 {
            same_facts(selected.facts(index), &expected.batch[index - 1]);
        }
        let single = decode(message.run(index..index + 1).bytes()).expect("a run is a batch");
        same(
            &single,
            &v2::EnvelopeBatch {
                batch: vec![envelope.clone()],
            },
        );
    }
}

/// Compares encodings, in which NaN equals itself.
fn same(a: &v2::EnvelopeBatch, b: &v2::EnvelopeBatch) {
    assert_eq!(a.encode_to_vec(), b.encode_to_vec(), "{a:?} and {b:?}");
}

/// Converts, and compares what both sides know: how many v1 forms there are, and the numbers and
/// names in them.
fn same_forms(facts: Facts<'_>, envelope: &v2::Envelope) {
    use v2::envelope::Message;
    let forms = v2_to_v1(facts);
    let converted: Vec<_> = forms.iter().map(|form| form.envelope()).collect();
    assert!(
        converted
            .iter()
            .all(|form| form.timestamp == Some(envelope.timestamp))
    );
    match &envelope.message {
        None | Some(Message::Event(_)) => assert_eq!(forms.len(), 0),
        Some(Message::Log(log)) => {
            let [form] = &*converted else {
                panic!("one form: {converted:?}")
            };
            let error = form
                .error
                .as_ref()
                .and_then(|error| error.message.as_deref());
            let line = form
                .log_message
                .as_ref()
                .and_then(|log| log.message.as_deref());
            assert_eq!(error.or(line).unwrap_or_default(), log.payload);
        }
        Some(Message::Counter(counter)) => {
            let [form] = &*converted else {
                panic!("one form: {converted:?}")
            };
            let event = form.counter_event.as_ref().expect("a counter event");
            assert_eq!(event.name.as_deref(), Some(counter.name.as_bytes()));
            assert_eq!(
                (event.delta, event.total),
                (Some(counter.delta), Some(counter.total))
            );
        }
        Some(Message::Timer(timer)) => {
            let [form] = &*converted else {
                panic!("one form: {converted:?}")
            };
            let http = form.http_start_stop.as_ref().expect("a request");
            assert_eq!(http.start_timestamp, Some(timer.start));
            assert_eq!(http.stop_timestamp, Some(timer.stop));
        }
        Some(Message::Gauge(gauge)) => {
            if let [one] = &*converted
                && let Some(container) = &one.container_metric
            {
                let cpu = container.cpu_percentage.map(f64::to_bits);
                assert_eq!(cpu, gauge.metrics.get("cpu").map(|cpu| cpu.value.to_bits()));
                return;
            }
            let values = converted.iter().map(|form| {
                let metric = form.value_metric.as_ref().expect("a value");
                let name = metric.name.as_deref().expect("a name");
                let unit = metric.unit.as_deref().expect("a unit");
                (name, unit, metric.value.expect("a value").to_bits())
            });
            let expected = gauge.metrics.iter().map(|(name, value)| {
                (
                    name.as_bytes(),
                    value.unit.as_bytes(),
                    value.value.to_bits(),
                )
            });
            assert_eq!(values.collect::<BTreeSet<_>>(), expected.collect());
            assert_eq!(forms.len(), gauge.metrics.len());
        }
    }
    for form in forms.iter() {
        let Some(payload) = form.payload() else {
            continue;
        };
        let pushed = Pushed::parse(payload.bytes(), Limits { bytes: 1 << 30 });
        let pushed = pushed.unwrap_or_else(|error| panic!("a payload is complete: {error}"));
        assert_eq!(
            (pushed.app_id(), pushed.r#type()),
            (form.app_id(), form.r#type())
        );
    }
}

fn same_facts(facts: Facts<'_>, envelope: &v2::Envelope) {
    use v2::envelope::Message;
    assert_eq!(facts.source_id(), envelope.source_id);
    let names: BTreeSet<&[u8]> = facts.metric_names().iter().collect();
    assert_eq!(
        names.len(),
        facts.metric_names().len(),
        "names are distinct"
    );
    let (kind, expected): (_, Vec<&str>) = match &envelope.message {
        None => (None, vec![]),
        Some(Message::Log(_)) => (Some(Kind::Log), vec![]),
        Some(Message::Timer(_)) => (Some(Kind::Timer), vec![]),
        Some(Message::Event(_)) => (Some(Kind::Event), vec![]),
        Some(Message::Counter(counter)) => (Some(Kind::Counter), vec![&counter.name]),
        Some(Message::Gauge(gauge)) => (
            Some(Kind::Gauge),
            gauge.metrics.keys().map(|name| &**name).collect(),
        ),
    };
    assert_eq!(facts.kind(), kind);
    assert_eq!(names, expected.iter().map(|name| name.as_bytes()).collect());
    let counter = (kind == Some(Kind::Counter)).then(|| expected[0]);
    assert_eq!(facts.counter_name(), counter);
}
