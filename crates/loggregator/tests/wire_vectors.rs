//! The reference's verdicts on single messages (`vectors/wire-decode.jsonl`), as verdicts of the raw
//! view and of the full decoder that it is held against elsewhere.

mod support;

use loggregator::{Error, Flaw, Kind, Limits, Message, v2};
use prost::Message as _;
use support::{bytes, cases, element, oracle};

const VECTORS: &str = include_str!("vectors/wire-decode.jsonl");

#[test]
fn v2_envelopes_and_batches() {
    let mut seen = 0;
    for case in cases(VECTORS) {
        let name = case["name"].as_str().unwrap();
        let input = bytes(&case, "input_b64");
        let accept = case["accept"].as_bool().unwrap();
        let batch = match case["type"].as_str().unwrap() {
            "loggregator.v2.Envelope" => {
                let alone = Message::parse_envelope(&input, Limits::default());
                assert_eq!(alone.is_ok(), accept, "{name}");
                if let Ok(message) = alone {
                    assert_eq!(
                        message.facts(0).bytes(),
                        input,
                        "{name}: forwarded untouched"
                    );
                }
                element(&input)
            }
            "loggregator.v2.EnvelopeBatch" => input,
            _ => continue,
        };
        let message = Message::parse(&batch, Limits::default());
        assert_eq!(message.is_ok(), accept, "{name}");
        assert_eq!(
            oracle::decode(&batch).is_some(),
            accept,
            "{name}: by the full decoder"
        );
        oracle::check(&batch);
        if let Ok(message) = message {
            assert_eq!(
                message.whole().bytes(),
                batch,
                "{name}: forwarded untouched"
            );
        }
        seen += 1;
    }
    assert_eq!(seen, 37);
}

#[test]
fn one_bad_envelope_among_good_ones_refuses_all() {
    for case in cases(VECTORS) {
        if case["type"] != "loggregator.v2.Envelope" {
            continue;
        }
        let good = element(&[0x12, 1, b's']);
        let batch = [&*good, &element(&bytes(&case, "input_b64")), &good].concat();
        let message = Message::parse(&batch, Limits::default());
        match case["accept"].as_bool().unwrap() {
            true => assert_eq!(message.unwrap().len(), 3),
            false => assert!(
                matches!(message, Err(Error::Malformed { envelope: 1, .. })),
                "{case}"
            ),
        }
    }
}

#[test]
fn egress_requests() {
    let case = cases(VECTORS)
        .into_iter()
        .find(|case| case["name"] == "egress-request-bad-shard");
    let input = bytes(&case.expect("the vector"), "input_b64");
    assert!(v2::EgressBatchRequest::decode(&*input).is_err());
}

/// Field case R5.
#[test]
fn unknown_fields_stay() {
    let envelope = [0x12, 1, b's', 0x7A, 1, b'z'];
    let message = Message::parse(&element(&envelope), Limits::default()).unwrap();
    assert_eq!(message.facts(0).bytes(), envelope);
    assert_eq!(message.whole().bytes(), element(&envelope));
}

#[test]
fn unknown_fields_of_the_batch_are_dropped() {
    let one = element(&[0x12, 1, b'a', 0x2A, 3, 0x0A, 1, b'c']);
    let unknown = [0x7A, 2, 1, 2];
    let wrong_wire_type = [0x08, 1];
    let group = [0x7B, 0x0A, 1, 7, 0x7C];
    let parts: [&[u8]; 7] = [
        &unknown,
        &one,
        &group,
        &wrong_wire_type,
        &one,
        &one,
        &unknown,
    ];
    let batch = parts.concat();
    let message = Message::parse(&batch, Limits::default()).unwrap();
    assert_eq!(message.whole().bytes(), one.repeat(3));
    assert_eq!(message.byte_len(), 3 * one.len());
    for index in 0..3 {
        assert_eq!(message.facts(index).source_id(), "a");
        assert_eq!(message.facts(index).counter_name(), Some("c"));
        assert_eq!(message.run(index..index + 1).bytes(), one);
    }
    oracle::check(&batch);
}

#[test]
fn errors_name_the_place() {
    let good = element(&[0x12, 1, b's']);
    let bad = element(&[0x4A, 6, 0x0A, 1, b'k', 0x12, 1, 0xFF]);
    let error = Message::parse(&[good, bad].concat(), Limits::default()).unwrap_err();
    assert_eq!(
        error,
        Error::Malformed {
            envelope: 1,
            offset: 14,
            flaw: Flaw::Utf8("a value of tags")
        }
    );
    assert_eq!(
        error.to_string(),
        "envelope 1: a value of tags is not UTF-8, at byte 14"
    );

    let alone = Message::parse_envelope(&[0x12, 2, b'a', 0xFF], Limits::default()).unwrap_err();
    assert_eq!(
        alone.to_string(),
        "envelope 0: source_id is not UTF-8, at byte 3"
    );
}

#[test]
fn the_size_limit_is_exact() {
    let limits = Limits::default();
    assert_eq!(limits.bytes, 10_485_760);
    let log = |payload: usize| {
        let body = v2::Log {
            payload: vec![0xFF; payload],
            r#type: 0,
        };
        let message = Some(v2::envelope::Message::Log(body));
        v2::EnvelopeBatch {
            batch: vec![v2::Envelope {
                message,
                ..Default::default()
            }],
        }
        .encode_to_vec()
    };
    let overhead = log(9 << 20).len() - (9 << 20);
    let fitting = log(limits.bytes - overhead);
    assert_eq!(fitting.len(), limits.bytes);
    assert_eq!(Message::parse(&fitting, limits).unwrap().len(), 1);
    let error = Message::parse(&log(limits.bytes - overhead + 1), limits).unwrap_err();
    assert_eq!(
        error.to_string(),
        "message of 10485761 bytes is over the limit of 10485760 bytes"
    );
}

#[test]
fn kinds_that_change() {
    let counter = |name| vec![0x2A, 3, 0x0A, 1, name];
    let gauge = |name| vec![0x32, 5, 0x0A, 3, 0x0A, 1, name];
    let log = vec![0x22, 0];
    let event = vec![0x52, 0];
    for (parts, kind, names) in [
        (
            vec![gauge(b'a'), counter(b'b'), gauge(b'c')],
            Kind::Gauge,
            &["c"][..],
        ),
        (
            vec![gauge(b'a'), gauge(b'b'), gauge(b'a')],
            Kind::Gauge,
            &["a", "b"],
        ),
        (
            vec![gauge(b'a'), log.clone(), gauge(b'b')],
            Kind::Gauge,
            &["b"],
        ),
        (
            vec![counter(b'a'), event, vec![0x2A, 0]],
            Kind::Counter,
            &[""],
        ),
        (vec![counter(b'a'), vec![0x2A, 0]], Kind::Counter, &["a"]),
        (vec![counter(b'a'), counter(b'b')], Kind::Counter, &["b"]),
        (vec![gauge(b'a'), counter(b'b'), log], Kind::Log, &[]),
    ] {
        let batch = element(&parts.concat());
        oracle::check(&batch);
        let message = Message::parse(&batch, Limits::default()).unwrap();
        let facts = message.facts(0);
        assert_eq!(facts.kind(), Some(kind), "{parts:?}");
        let found: Vec<&[u8]> = facts.metric_names().iter().collect();
        assert_eq!(
            found,
            names.iter().map(|name| name.as_bytes()).collect::<Vec<_>>(),
            "{parts:?}"
        );
    }
}

#[test]
fn metrics_named_twice_count_once() {
    for metrics in [2_u8, 10, 16, 17, 60] {
        let names = (0..metrics).chain((0..metrics).step_by(3)).chain([5]);
        let entries = names.flat_map(|name| [0x0A, 3, 0x0A, 1, b'A' + name % 64]);
        let entries: Vec<u8> = entries.collect();
        let mut gauge = vec![0x32];
        prost::encoding::encode_varint(entries.len() as u64, &mut gauge);
        gauge.extend_from_slice(&entries);
        // Envelopes around it have names of their own.
        let counter = element(&[0x2A, 3, 0x0A, 1, b'c']);
        let batch = [counter.clone(), element(&gauge), counter].concat();
        oracle::check(&batch);
        let message = Message::parse(&batch, Limits::default()).unwrap();
        let distinct = if metrics > 5 { metrics } else { metrics + 1 };
        assert_eq!(message.facts(1).metric_names().len(), usize::from(distinct));
    }
}

/// A tag of 1290 bytes whose first bytes, its two-byte length included, could be taken for a shorter
/// tag of the usual shape: the second byte of the length for the entry's first key, and so on.
#[test]
fn long_tags_are_not_taken_for_short_ones() {
    const LEN: usize = 1290;
    let mut key = [b'k'; 20];
    (key[9], key[10]) = (0x12, 124);
    let mut entry = [&[0x0A, 20], &key[..], &[0x12]].concat();
    let value = LEN - entry.len() - 2;
    prost::encoding::encode_varint(value as u64, &mut entry);
    entry.resize(LEN, b'v');
    let header = [0x4A, 0x8A, 0x0A];
    let envelope = [&header, &*entry, &[0x12, 1, b's']].concat();
    let batch = element(&envelope);
    oracle::check(&batch);
    let message = Message::parse(&batch, Limits::default()).unwrap();
    assert_eq!(message.facts(0).source_id(), "s");
}

#[test]
fn groups_are_nested_as_deep_as_a_full_decoder_allows() {
    let nested = |key: u8, content: &[u8]| {
        let mut field = vec![key];
        prost::encoding::encode_varint(content.len() as u64, &mut field);
        field.extend_from_slice(content);
        field
    };
    let mut verdicts = [0, 0];
    for depth in 90..103 {
        for content in [&[][..], &[0x08, 1]] {
            let groups = [&vec![0x7B; depth], content, &vec![0x7C; depth]].concat();
            // In the batch, an envelope, a log, a gauge's metric and its value.
            let log = nested(0x22, &groups);
            let metric = nested(0x32, &nested(0x0A, &groups));
            let value = nested(0x32, &nested(0x0A, &nested(0x12, &groups)));
            let batches = [&groups, &log, &metric, &value].map(|envelope| element(envelope));
            for batch in batches.iter().chain([&groups]) {
                oracle::check(batch);
                verdicts[usize::from(Message::parse(batch, Limits::default()).is_ok())] += 1;
            }
        }
    }
    assert!(verdicts.iter().all(|count| *count > 0), "{verdicts:?}");
}
