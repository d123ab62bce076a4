//! Envelopes as text: a readable line each, or JSON as the protobuf mapping has it (which is what
//! the platform's own gateway speaks: payloads in base64, 64-bit numbers as strings).

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use base64::prelude::{BASE64_STANDARD, Engine};
use loggregator::v2::{self, envelope::Message, value::Data};
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::macros::format_description;

/// One readable line, without a line break whatever the envelope holds:
/// `TIME SOURCE/INSTANCE KIND DETAILS {TAGS}`.
pub(crate) struct Line<'a>(pub(crate) &'a v2::Envelope);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let envelope = self.0;
        write!(
            f,
            "{} {}",
            timestamp(envelope.timestamp),
            Plain(&envelope.source_id)
        )?;
        if !envelope.instance_id.is_empty() {
            write!(f, "/{}", Plain(&envelope.instance_id))?;
        }
        match &envelope.message {
            None => f.write_str(" (unknown kind)")?,
            Some(Message::Log(log)) => {
                let text = String::from_utf8_lossy(&log.payload);
                write!(f, " LOG {} {}", log_type(log), Plain(&text))?;
            }
            Some(Message::Counter(counter)) => {
                let v2::Counter { name, delta, total } = counter;
                write!(f, " COUNTER {} +{delta} ={total}", Plain(name))?;
            }
            Some(Message::Gauge(gauge)) => {
                f.write_str(" GAUGE")?;
                for (name, v2::GaugeValue { unit, value }) in &gauge.metrics {
                    write!(f, " {}={value}{}", Plain(name), Plain(unit))?;
                }
            }
            Some(Message::Timer(timer)) => {
                let took = i128::from(timer.stop) - i128::from(timer.start);
                write!(f, " TIMER {} {}ms", Plain(&timer.name), took as f64 / 1e6)?;
            }
            Some(Message::Event(event)) => {
                write!(f, " EVENT {}: {}", Plain(&event.title), Plain(&event.body))?;
            }
        }
        let deprecated = envelope.deprecated_tags.iter().filter_map(|(name, value)| {
            let text = match value.data.as_ref()? {
                Data::Text(text) => text.clone(),
                Data::Integer(number) => number.to_string(),
                Data::Decimal(number) => number.to_string(),
            };
            Some((name, text))
        });
        let mut tags: BTreeMap<_, _> = deprecated.collect();
        tags.extend(
            envelope
                .tags
                .iter()
                .map(|(name, value)| (name, value.clone())),
        );
        if !tags.is_empty() {
            let mut separator = " {";
            for (name, value) in tags {
                write!(f, "{separator}{}={}", Plain(name), Plain(&value))?;
                separator = " ";
            }
            f.write_str("}")?;
        }
        Ok(())
    }
}

/// Text without the characters that would move a terminal's cursor or worse.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            if character.is_control() && character != '\t' {
                write!(f, "{}", character.escape_default())?;
            } else {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

/// Nanoseconds since 1970 as RFC 3339; as a number if that is in no year that has four digits.
fn timestamp(nanoseconds: i64) -> String {
    let format =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:9]Z");
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds.into())
        .ok()
        .and_then(|time| time.format(format).ok())
        .unwrap_or_else(|| nanoseconds.to_string())
}

fn log_type(log: &v2::Log) -> String {
    match v2::log::Type::try_from(log.r#type) {
        Ok(v2::log::Type::Out) => "OUT".to_owned(),
        Ok(v2::log::Type::Err) => "ERR".to_owned(),
        Err(_) => log.r#type.to_string(),
    }
}

/// The envelope as a JSON object.
pub(crate) fn json(envelope: &v2::Envelope) -> Value {
    let mut object = Map::new();
    object.insert("timestamp".into(), envelope.timestamp.to_string().into());
    object.insert("source_id".into(), envelope.source_id.clone().into());
    object.insert("instance_id".into(), envelope.instance_id.clone().into());
    let deprecated = envelope.deprecated_tags.iter().map(|(name, value)| {
        let value = match &value.data {
            None => json!({}),
            Some(Data::Text(text)) => json!({ "text": text }),
            Some(Data::Integer(number)) => json!({ "integer": number.to_string() }),
            Some(Data::Decimal(number)) => json!({ "decimal": double(*number) }),
        };
        (name.clone(), value)
    });
    object.insert(
        "deprecated_tags".into(),
        Value::Object(deprecated.collect()),
    );
    object.insert("tags".into(), json!(envelope.tags));
    let (kind, message) = match &envelope.message {
        None => return Value::Object(object),
        Some(Message::Log(log)) => {
            let payload = BASE64_STANDARD.encode(&log.payload);
            let log_type = match v2::log::Type::try_from(log.r#type) {
                Ok(known) => json!(known.as_str_name()),
                Err(_) => json!(log.r#type),
            };
            ("log", json!({ "payload": payload, "type": log_type }))
        }
        Some(Message::Counter(v2::Counter { name, delta, total })) => {
            let (delta, total) = (delta.to_string(), total.to_string());
            (
                "counter",
                json!({ "name": name, "delta": delta, "total": total }),
            )
        }
        Some(Message::Gauge(gauge)) => {
            let metrics: Map<_, _> = gauge
                .metrics
                .iter()
                .map(|(name, v2::GaugeValue { unit, value })| {
                    (
                        name.clone(),
                        json!({ "unit": unit, "value": double(*value) }),
                    )
                })
                .collect();
            ("gauge", json!({ "metrics": metrics }))
        }
        Some(Message::Timer(v2::Timer { name, start, stop })) => {
            let (start, stop) = (start.to_string(), stop.to_string());
            (
                "timer",
                json!({ "name": name, "start": start, "stop": stop }),
            )
        }
        Some(Message::Event(v2::Event { title, body })) => {
            ("event", json!({ "title": title, "body": body }))
        }
    };
    object.insert(kind.into(), message);
    Value::Object(object)
}

/// JSON knows no infinities; the mapping has names for them.
fn double(number: f64) -> Value {
    match number {
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        number if number.is_nan() => json!("NaN"),
        number => json!(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(message: Option<Message>) -> v2::Envelope {
        v2::Envelope {
            timestamp: 1_785_585_600_123_456_789,
            source_id: "app".to_owned(),
            instance_id: "0".to_owned(),
            message,
            ..Default::default()
        }
    }

    fn log(payload: &[u8], log_type: i32) -> v2::Envelope {
        envelope(Some(Message::Log(v2::Log {
            payload: payload.to_vec(),
            r#type: log_type,
        })))
    }

    /// One envelope of each kind, its line and its JSON.
    #[test]
    fn each_kind() {
        let metrics = [("cpu", 1.5, "%"), ("memory", f64::NAN, "")].map(|(name, value, unit)| {
            (
                name.to_owned(),
                v2::GaugeValue {
                    unit: unit.to_owned(),
                    value,
                },
            )
        });
        let cases = [
            (
                log(b"hello", 1),
                "LOG ERR hello",
                json!({"log": {"payload": "aGVsbG8=", "type": "ERR"}}),
            ),
            (
                log(b"", 7),
                "LOG 7 ",
                json!({"log": {"payload": "", "type": 7}}),
            ),
            (
                envelope(Some(Message::Counter(v2::Counter {
                    name: "requests".to_owned(),
                    delta: 2,
                    total: u64::MAX,
                }))),
                "COUNTER requests +2 =18446744073709551615",
                json!({"counter": {"name": "requests", "delta": "2", "total": "18446744073709551615"}}),
            ),
            (
                envelope(Some(Message::Gauge(v2::Gauge {
                    metrics: metrics.into(),
                }))),
                "GAUGE cpu=1.5% memory=NaN",
                json!({"gauge": {"metrics": {
                    "cpu": {"unit": "%", "value": 1.5},
                    "memory": {"unit": "", "value": "NaN"},
                }}}),
            ),
            (
                envelope(Some(Message::Timer(v2::Timer {
                    name: "http".to_owned(),
                    start: 1_000_000,
                    stop: 3_500_000,
                }))),
                "TIMER http 2.5ms",
                json!({"timer": {"name": "http", "start": "1000000", "stop": "3500000"}}),
            ),
            (
                envelope(Some(Message::Event(v2::Event {
                    title: "crash".to_owned(),
                    body: "exit 1".to_owned(),
                }))),
                "EVENT crash: exit 1",
                json!({"event": {"title": "crash", "body": "exit 1"}}),
            ),
            (envelope(None), "(unknown kind)", json!({})),
        ];
        for (envelope, line, message) in cases {
            let start = "2026-08-01T12:00:00.123456789Z app/0 ";
            assert_eq!(Line(&envelope).to_string(), format!("{start}{line}"));
            let mut expected = json!({
                "timestamp": "1785585600123456789",
                "source_id": "app",
                "instance_id": "0",
                "tags": {},
                "deprecated_tags": {},
            });
            expected
                .as_object_mut()
                .unwrap()
                .extend(message.as_object().unwrap().clone());
            assert_eq!(json(&envelope), expected);
        }
    }

    #[test]
    fn both_maps_of_tags() {
        let mut envelope = log(b"x", 0);
        let value = |data| v2::Value { data };
        envelope.deprecated_tags = BTreeMap::from([
            ("a".to_owned(), value(Some(Data::Text("old".to_owned())))),
            ("b".to_owned(), value(Some(Data::Integer(-1)))),
            ("c".to_owned(), value(Some(Data::Decimal(0.5)))),
            ("d".to_owned(), value(None)),
        ]);
        envelope.tags = BTreeMap::from([("a".to_owned(), "new".to_owned())]);
        assert!(Line(&envelope).to_string().ends_with(" {a=new b=-1 c=0.5}"));
        let json = json(&envelope);
        assert_eq!(json["tags"], json!({"a": "new"}));
        assert_eq!(
            json["deprecated_tags"],
            json!({"a": {"text": "old"}, "b": {"integer": "-1"}, "c": {"decimal": 0.5}, "d": {}})
        );
    }

    #[test]
    fn nothing_moves_the_cursor() {
        let mut envelope = log(b"a\x1b[2Jb\nc\td\xff\r", 0);
        envelope.source_id = "\u{9b}31m".to_owned();
        let line = Line(&envelope).to_string();
        assert!(
            line.ends_with("LOG OUT a\\u{1b}[2Jb\\nc\td\u{fffd}\\r"),
            "{line}"
        );
        assert!(line.chars().all(|c| !c.is_control() || c == '\t'), "{line}");
    }

    #[test]
    fn extreme_times() {
        for (nanoseconds, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
            (i64::MAX, "2262-04-11T23:47:16.854775807Z"),
            (i64::MIN, "1677-09-21T00:12:43.145224192Z"),
        ] {
            assert_eq!(timestamp(nanoseconds), text);
        }
        let timer = v2::Timer {
            name: String::new(),
            start: i64::MIN,
            stop: i64::MAX,
        };
        let envelope = envelope(Some(Message::Timer(timer)));
        assert!(Line(&envelope).to_string().ends_with("18446744073709.55ms"));
    }
}
