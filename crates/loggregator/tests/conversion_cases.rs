//! Conversions beyond the vectors: odd numbers, repaired text, and what a round trip keeps.

use std::collections::BTreeMap;

use loggregator::convert::{TagMap, v1_to_v2, v2_to_v1};
use loggregator::v1::{self, EventType, Pushed};
use loggregator::{Limits, Message, Text, v2};
use prost::Message as _;
use v2::envelope::Message as Kind;

fn received(envelope: &v2::Envelope) -> Message {
    Message::parse_envelope(&envelope.encode_to_vec(), Limits::default()).unwrap()
}

/// The forms of a v2 envelope, read back from what a v1 consumer would get.
fn forms(envelope: &v2::Envelope) -> Vec<Pushed> {
    let message = received(envelope);
    let forms = v2_to_v1(message.facts(0));
    let payloads = forms.iter().filter_map(|form| form.payload());
    payloads
        .map(|payload| Pushed::parse(payload.bytes(), Limits::default()).unwrap())
        .collect()
}

fn to_v2(envelope: &v1::Envelope<'_>) -> v2::Envelope {
    let converted = v1_to_v2(envelope, TagMap::Preferred);
    assert_eq!(converted.repaired, 0);
    v2::Envelope::decode(&*converted.envelope).unwrap()
}

fn envelope<'a>(event_type: EventType) -> v1::Envelope<'a> {
    v1::Envelope {
        origin: Some(b"o".into()),
        event_type: Some(event_type),
        deployment: Some(b"cf".into()),
        job: Some(b"cell".into()),
        ..Default::default()
    }
}

fn text(text: &str) -> Option<Text<'_>> {
    Some(text.as_bytes().into())
}

#[test]
fn timestamps_pass_unchanged() {
    for timestamp in [0, 1, -1, i64::MIN, i64::MAX] {
        let log = Some(Kind::Log(v2::Log {
            payload: b"x".to_vec(),
            r#type: 0,
        }));
        let [form] = &*forms(&v2::Envelope {
            timestamp,
            message: log,
            ..Default::default()
        }) else {
            panic!("one form");
        };
        assert_eq!(form.envelope().timestamp, Some(timestamp));
        assert_eq!(
            form.envelope().log_message.unwrap().timestamp,
            Some(timestamp)
        );

        let v1 = v1::Envelope {
            timestamp: Some(timestamp),
            ..envelope(EventType::Error)
        };
        assert_eq!(to_v2(&v1).timestamp, timestamp);
    }
}

#[test]
fn a_counter_keeps_its_delta() {
    let counter = v2::Counter {
        name: "c".into(),
        delta: 5,
        total: 0,
    };
    let message = Some(Kind::Counter(counter));
    let [form] = &*forms(&v2::Envelope {
        message,
        ..Default::default()
    }) else {
        panic!("one form");
    };
    let event = form.envelope().counter_event.unwrap();
    assert_eq!((event.delta, event.total), (Some(5), Some(0)));
}

#[test]
fn container_numbers_that_do_not_fit() {
    let container = |memory: f64, index: f64| {
        let names = [
            "cpu",
            "memory",
            "disk",
            "memory_quota",
            "disk_quota",
            "instance_index",
        ];
        let values = [1.0, memory, 1.0, 1.0, 1.0, index];
        let metrics: BTreeMap<_, _> = names
            .into_iter()
            .zip(values)
            .map(|(name, value)| {
                (
                    name.into(),
                    v2::GaugeValue {
                        unit: "u".into(),
                        value,
                    },
                )
            })
            .collect();
        let message = Some(Kind::Gauge(v2::Gauge { metrics }));
        let forms = forms(&v2::Envelope {
            message,
            ..Default::default()
        });
        assert_eq!(forms.len(), 1);
        let metric = forms[0].envelope().container_metric.unwrap();
        (metric.memory_bytes.unwrap(), metric.instance_index.unwrap())
    };
    for (value, expected) in [
        (0.0, 0),
        (0.9, 0),
        (-0.5, 0),
        (-1.0, u64::MAX),
        (2_f64.powi(63), 1 << 63),
        (2_f64.powi(64) - 2048.0, u64::MAX - 2047),
        (2_f64.powi(64), 1 << 63),
        (-(2_f64.powi(63)), 1 << 63),
        (-(2_f64.powi(65)), 1 << 63),
        (f64::INFINITY, 1 << 63),
        (f64::NAN, 1 << 63),
    ] {
        assert_eq!(container(value, 0.0).0, expected, "{value}");
    }
    for (value, expected) in [
        (11.9, 11),
        (-11.9, -11),
        (2_147_483_647.5, i32::MAX),
        (2_147_483_648.0, i32::MIN),
        (-2_147_483_648.9, i32::MIN),
        (-2_147_483_649.0, i32::MIN),
        (f64::NEG_INFINITY, i32::MIN),
        (f64::NAN, i32::MIN),
    ] {
        assert_eq!(container(1.0, value).1, expected, "{value}");
    }
}

/// Field case R4.
#[test]
fn what_is_not_utf8_is_repaired_and_counted() {
    let bad = || Some(Text::from(&b"\xFF\xFEx"[..]));
    let value = v1::Envelope {
        origin: bad(),
        value_metric: Some(v1::ValueMetric {
            name: bad(),
            value: Some(1.0),
            unit: bad(),
        }),
        tags: vec![v1::Tag {
            key: bad(),
            value: bad(),
        }],
        ..envelope(EventType::ValueMetric)
    };
    let counter = v1::Envelope {
        job: bad(),
        counter_event: Some(v1::CounterEvent {
            name: bad(),
            delta: Some(1),
            total: None,
        }),
        ..envelope(EventType::CounterEvent)
    };
    let log = v1::Envelope {
        log_message: Some(v1::LogMessage {
            message: bad(),
            app_id: bad(),
            source_type: bad(),
            source_instance: bad(),
            ..Default::default()
        }),
        ..envelope(EventType::LogMessage)
    };
    let error = v1::Envelope {
        error: Some(v1::Error {
            source: text("s"),
            code: Some(1),
            message: bad(),
        }),
        ..envelope(EventType::Error)
    };
    // The job is in a tag and in the source id.
    for (envelope, repaired) in [(value, 5), (counter, 3), (log, 3), (error, 0)] {
        for tag_map in [TagMap::Preferred, TagMap::Deprecated] {
            let converted = v1_to_v2(&envelope, tag_map);
            assert_eq!(converted.repaired, repaired, "{envelope:?}");
            Message::parse_envelope(&converted.envelope, Limits::default()).unwrap();
            let v2 = v2::Envelope::decode(&*converted.envelope).unwrap();
            if let Some(Kind::Log(log)) = v2.message {
                assert_eq!(log.payload, b"\xFF\xFEx", "a payload may be anything");
            }
        }
    }
}

/// An event type and a field's value, as they leave after a round trip.
#[test]
fn round_trips_keep_what_v2_can_hold() {
    let app = "3f1c2d4e-5a6b-4c7d-8e9f-0a1b2c3d4e5f";
    let log = v1::Envelope {
        log_message: Some(v1::LogMessage {
            message: text("hello"),
            message_type: Some(v1::MessageType::ERR),
            timestamp: Some(42),
            app_id: text(app),
            source_type: text("APP"),
            source_instance: text("3"),
        }),
        ..envelope(EventType::LogMessage)
    };
    let http = v1::Envelope {
        http_start_stop: Some(v1::HttpStartStop {
            start_timestamp: Some(1),
            stop_timestamp: Some(2),
            request_id: v1::Uuid::from_text(app.as_bytes()),
            peer_type: Some(v1::PeerType::Server),
            method: Some(v1::Method::PATCH),
            uri: text("/x"),
            remote_address: text("192.0.2.1:1"),
            user_agent: text("probe"),
            status_code: Some(-1),
            content_length: Some(i64::MAX),
            application_id: v1::Uuid::from_text(app.as_bytes()),
            instance_index: Some(7),
            instance_id: text("i"),
            forwarded: vec![b"a"[..].into(), b"b"[..].into()],
        }),
        ..envelope(EventType::HttpStartStop)
    };
    let container = v1::Envelope {
        container_metric: Some(v1::ContainerMetric {
            application_id: text(app),
            instance_index: Some(1),
            cpu_percentage: Some(0.0),
            memory_bytes: Some(0),
            disk_bytes: Some(3),
            memory_bytes_quota: Some(4),
            disk_bytes_quota: Some(1 << 40),
        }),
        ..envelope(EventType::ContainerMetric)
    };
    let error = v1::Envelope {
        error: Some(v1::Error {
            source: text("s"),
            code: Some(-9),
            message: text("it broke"),
        }),
        ..envelope(EventType::Error)
    };
    let value = v1::Envelope {
        value_metric: Some(v1::ValueMetric {
            name: text("q"),
            value: Some(-0.0),
            unit: text("u"),
        }),
        ..envelope(EventType::ValueMetric)
    };
    let counter = v1::Envelope {
        counter_event: Some(v1::CounterEvent {
            name: text("c"),
            delta: Some(1),
            total: Some(9),
        }),
        ..envelope(EventType::CounterEvent)
    };
    for (before, expected_app) in [
        (log, app),
        (http, app),
        (container, app),
        (error, "system"),
        (value, "system"),
        (counter, "system"),
    ] {
        let forms = forms(&to_v2(&before));
        assert_eq!(forms.len(), 1);
        assert_eq!(forms[0].app_id(), expected_app.as_bytes());
        let after = forms[0].envelope();
        assert_eq!(after.event_type, before.event_type);
        // A log's own time is dropped in favour of the envelope's.
        let mut log_before = before.log_message.clone();
        if let Some(log) = &mut log_before {
            log.timestamp = Some(0);
        }
        assert_eq!(after.log_message, log_before);
        assert_eq!(after.http_start_stop, before.http_start_stop);
        assert_eq!(after.container_metric, before.container_metric);
        assert_eq!(after.error, before.error);
        assert_eq!(after.value_metric, before.value_metric);
        assert_eq!(after.counter_event, before.counter_event);
        assert_eq!(
            (after.origin.as_deref(), after.job.as_deref()),
            (Some(&b"o"[..]), Some(&b"cell"[..]))
        );
        let source = if expected_app == "system" {
            "cf/cell"
        } else {
            app
        };
        assert_eq!(after.tag(b"source_id"), Some(source.as_bytes()));
    }
}

#[test]
fn many_tags_take_no_quadratic_time() {
    let tags = (0..100_000)
        .map(|i| (format!("key-{i}"), "value".into()))
        .collect();
    let log = Some(Kind::Log(v2::Log {
        payload: b"x".to_vec(),
        r#type: 0,
    }));
    let forms = forms(&v2::Envelope {
        tags,
        message: log,
        ..Default::default()
    });
    assert_eq!(forms[0].envelope().tags.len(), 100_000);
}

/// Zero is zero, also if it is written out.
#[test]
fn a_written_zero_without_unit_makes_no_container() {
    let metric = |name: &str, value: f64| {
        let key = [&[0x0A, name.len() as u8], name.as_bytes()].concat();
        let entry = [&*key, &[0x12, 9, 0x11], &value.to_le_bytes()].concat();
        [&[0x0A, entry.len() as u8], &*entry].concat()
    };
    let forms = |cpu: f64| {
        let rest = ["memory", "disk", "memory_quota", "disk_quota"].map(|name| metric(name, 1.0));
        let metrics = [metric("cpu", cpu), rest.concat()].concat();
        let gauge = [&[0x32, metrics.len() as u8], &*metrics].concat();
        let message = Message::parse_envelope(&gauge, Limits::default()).unwrap();
        v2_to_v1(message.facts(0)).len()
    };
    assert_eq!(forms(0.0), 5);
    assert_eq!(forms(-0.0), 5);
    assert_eq!(forms(0.5), 1);
}
