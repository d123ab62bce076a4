//! The reference's conversions (`vectors/conversion.jsonl`), all of them, compared as decoded
//! messages.

mod support;

use loggregator::convert::{TagMap, v1_to_v2, v2_to_v1};
use loggregator::v1::Envelope;
use loggregator::{Limits, Message, v2};
use prost::Message as _;
use serde_json::Value;
use support::events;
use support::{bytes, cases, decode};

fn direction(direction: &str) -> impl Iterator<Item = Value> {
    let cases = cases(include_str!("vectors/conversion.jsonl")).into_iter();
    cases.filter(move |case| case["direction"] == direction)
}

fn outputs(case: &Value) -> Vec<Vec<u8>> {
    case["output_b64"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| decode(one.as_str().unwrap()))
        .collect()
}

fn v1(bytes: &[u8]) -> events::Envelope {
    events::Envelope::decode(bytes).unwrap().sorted()
}

#[test]
fn v2_to_v1_vectors() {
    let mut seen = 0;
    for case in direction("v2_to_v1") {
        let name = case["name"].as_str().unwrap();
        let message =
            Message::parse_envelope(&bytes(&case, "input_b64"), Limits::default()).unwrap();
        let facts = message.facts(0);
        let forms = v2_to_v1(facts);

        // What comes out, and whether v1 consumers can get it.
        let mut found: Vec<(events::Envelope, bool)> = forms
            .iter()
            .map(|form| {
                let bytes = form.envelope().to_bytes();
                let payload = form.payload();
                if let Some(payload) = &payload {
                    assert_eq!(payload.bytes(), bytes, "{name}");
                    let complete = Envelope::parse(&bytes, Limits::default()).unwrap();
                    assert_eq!(complete.app_id(), form.app_id(), "{name}");
                }
                (v1(&bytes), payload.is_some())
            })
            .collect();
        let outputs = outputs(&case);
        let complete = case["v1_marshal_ok"].as_array().into_iter().flatten();
        let complete: Vec<bool> = complete.map(|one| one.as_bool().unwrap()).collect();
        assert_eq!(outputs.len(), complete.len(), "{name}");
        for (expected, complete) in outputs.iter().zip(complete) {
            let expected = (v1(expected), complete);
            let index = found.iter().position(|found| *found == expected);
            let index = index.unwrap_or_else(|| panic!("{name}: no {expected:#?} in {found:#?}"));
            found.remove(index);
        }
        assert!(found.is_empty(), "{name}: {found:#?}");
        assert_eq!(
            facts.bytes(),
            bytes(&case, "input_b64"),
            "{name}: the original is unharmed"
        );
        seen += 1;
    }
    assert_eq!(seen, 69);
}

#[test]
fn v1_to_v2_vectors() {
    let mut seen = 0;
    for case in direction("v1_to_v2") {
        let name = case["name"].as_str().unwrap();
        let input = bytes(&case, "input_b64");
        let envelope = Envelope::parse(&input, Limits::default()).unwrap();
        let tag_map = match case["preferred_tags"].as_bool().unwrap() {
            true => TagMap::Preferred,
            false => TagMap::Deprecated,
        };
        let converted = v1_to_v2(&envelope, tag_map);
        let message = Message::parse_envelope(&converted.envelope, Limits::default());
        assert!(message.is_ok(), "{name}: well formed, whatever came in");
        let found = v2::Envelope::decode(&*converted.envelope).unwrap();

        if case["v2_strict_marshal_ok"] == false {
            // There the reference has a result that it can't encode; here it is repaired.
            assert!(converted.repaired > 0, "{name}");
            assert!(
                format!("{found:?}").contains('\u{FFFD}'),
                "{name}: {found:?}"
            );
        } else {
            assert_eq!(converted.repaired, 0, "{name}");
            let [expected] = &*outputs(&case) else {
                panic!("{name}: one result")
            };
            let expected = v2::Envelope::decode(&**expected).unwrap();
            // Encoded, where NaN equals itself; the maps are sorted.
            assert_eq!(
                found.encode_to_vec(),
                expected.encode_to_vec(),
                "{name}: {found:#?}\n{expected:#?}"
            );
        }
        seen += 1;
    }
    assert_eq!(seen, 29);
}
