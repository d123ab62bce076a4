//! The codec: what it costs to check a received message and note where its envelopes go, to build
//! batches, to copy a few envelopes out of a message, to hash for deterministic routing, and to
//! convert from and to v1. Beside it stands what a full decoder takes for the same bytes.
//!
//! Times are per message of 100 envelopes, unless the name says one; criterion's elements are
//! envelopes.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use loggregator::convert::{TagMap, v1_to_v2, v2_to_v1};
use loggregator::v1::Pushed;
use loggregator::{Limits, Message, v2};
use prost::Message as _;
use pubsub::Event;
use std::hint::black_box;
use v2::envelope::Message as Kind;

/// Envelopes in a message, as agents batch them.
const BATCH: usize = 100;

/// A log of about 330 bytes: 128 bytes of payload and six tags, as a platform's agents send it.
fn log(number: usize) -> v2::Envelope {
    let text = format!("{number:08} GET /v2/things/{} HTTP/1.1 200 ", number % 97);
    v2::Envelope {
        timestamp: 1_700_000_000_123_456_789 + number as i64,
        source_id: "3f1c2d4e-5a6b-4c7d-8e9f-0a1b2c3d4e5f".into(),
        instance_id: "4".into(),
        tags: tags([
            ("app_name", "checkout"),
            ("deployment", "cf-prod"),
            ("index", "c52d-2"),
            ("ip", "10.0.16.24"),
            ("job", "diego-cell"),
            ("origin", "rep"),
        ]),
        message: Some(Kind::Log(v2::Log {
            payload: text.bytes().cycle().take(128).collect(),
            r#type: 0,
        })),
        ..Default::default()
    }
}

fn tags<const N: usize>(tags: [(&str, &str); N]) -> std::collections::BTreeMap<String, String> {
    tags.map(|(key, value)| (key.into(), value.into())).into()
}

/// The same log with text beyond ASCII in its tags.
fn log_beyond_ascii(number: usize) -> v2::Envelope {
    let mut envelope = log(number);
    envelope
        .tags
        .insert("app_name".into(), "größenprüfung".into());
    envelope
}

/// Old and new tags filled alike, as agents leave them.
fn log_with_both_tag_maps(number: usize) -> v2::Envelope {
    let mut envelope = log(number);
    envelope.deprecated_tags = envelope
        .tags
        .iter()
        .map(|(key, value)| {
            let data = Some(v2::value::Data::Text(value.clone()));
            (key.clone(), v2::Value { data })
        })
        .collect();
    envelope
}

fn counter(number: usize) -> v2::Envelope {
    let counter = v2::Counter {
        name: "http.requests".into(),
        delta: 5,
        total: number as u64,
    };
    v2::Envelope {
        message: Some(Kind::Counter(counter)),
        ..log(number)
    }
}

fn gauge(number: usize) -> v2::Envelope {
    let metrics = ["cpu", "memory", "disk", "memory_quota", "disk_quota"].map(|name| {
        let value = v2::GaugeValue {
            unit: "bytes".into(),
            value: number as f64 * 1.5,
        };
        (name.to_owned(), value)
    });
    let gauge = v2::Gauge {
        metrics: metrics.into(),
    };
    v2::Envelope {
        message: Some(Kind::Gauge(gauge)),
        ..log(number)
    }
}

fn batch_of(n: usize, envelope: fn(usize) -> v2::Envelope) -> Vec<u8> {
    v2::EnvelopeBatch {
        batch: (0..n).map(envelope).collect(),
    }
    .encode_to_vec()
}

fn message_of(n: usize, envelope: fn(usize) -> v2::Envelope) -> Message {
    parse(&batch_of(n, envelope))
}

fn parse(bytes: &[u8]) -> Message {
    Message::parse(bytes, Limits::default()).expect("well formed")
}

/// What an envelope is called and how to make the one with this number.
type Shape = (&'static str, fn(usize) -> v2::Envelope);

/// Received bytes to a message: check, note the facts, copy.
fn parsing(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    let kinds: [Shape; 5] = [
        ("log", log),
        ("log beyond ascii", log_beyond_ascii),
        ("log with both tag maps", log_with_both_tag_maps),
        ("counter", counter),
        ("gauge of 5", gauge),
    ];
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, envelope) in kinds {
        let bytes = batch_of(BATCH, envelope);
        group.bench_function(name, |b| b.iter(|| parse(black_box(&bytes))));
    }
    let bytes = batch_of(BATCH, log);
    group.bench_function("log, decoded by prost", |b| {
        b.iter(|| v2::EnvelopeBatch::decode(black_box(&*bytes)).expect("well formed"));
    });
    group.throughput(Throughput::Elements(1));
    let bytes = batch_of(1, log);
    group.bench_function("one log", |b| b.iter(|| parse(black_box(&bytes))));
    group.finish();
}

/// Messages to outgoing batches and to copies.
fn building(c: &mut Criterion) {
    let mut group = c.benchmark_group("build");
    group.throughput(Throughput::Elements(BATCH as u64));
    let message = message_of(BATCH, log);
    let whole = message.whole();
    let mut buf = Vec::with_capacity(whole.byte_len());
    group.bench_function("batch of one run", |b| {
        b.iter(|| {
            buf.clear();
            black_box(&whole).append_to(&mut buf);
            black_box(&buf);
        });
    });
    let runs: Vec<_> = (0..BATCH).map(|_| message_of(1, log).whole()).collect();
    group.bench_function("batch of 100 runs of one", |b| {
        b.iter(|| {
            buf.clear();
            for run in black_box(&runs) {
                run.append_to(&mut buf);
            }
            black_box(&buf);
        });
    });
    group.bench_function("cut into 10 and joined", |b| {
        b.iter_batched(
            || whole.clone(),
            |whole| {
                whole
                    .chunks(10, usize::MAX)
                    .reduce(|a, b| a.try_join(&b).expect("adjacent"))
            },
            BatchSize::SmallInput,
        );
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("copy of 1 in 100", |b| {
        b.iter(|| black_box(&message).select(std::iter::once(50..51)));
    });
    group.throughput(Throughput::Elements(BATCH as u64 / 2));
    let every_other: Vec<_> = (0..BATCH).step_by(2).map(|i| i..i + 1).collect();
    group.bench_function("copy of every other of 100", |b| {
        b.iter(|| black_box(&message).select(every_other.iter().cloned()));
    });
    group.finish();
}

/// The hash of deterministic routing.
fn hashing(c: &mut Criterion) {
    let mut group = c.benchmark_group("shard_hash");
    for (name, message) in [
        ("counter", message_of(1, counter)),
        ("gauge of 5", message_of(1, gauge)),
    ] {
        let facts = message.facts(0);
        group.bench_function(name, |b| b.iter(|| black_box(&facts).shard_hash()));
    }
    group.finish();
}

/// v1 both ways, one envelope at a time.
fn converting(c: &mut Criterion) {
    let mut group = c.benchmark_group("convert");
    let message = message_of(1, log);
    let facts = message.facts(0);
    group.bench_function("log to v1, routed only", |b| {
        b.iter(|| {
            v2_to_v1(black_box(facts))
                .iter()
                .map(|form| form.app_id().len())
                .sum::<usize>()
        });
    });
    let payload = || {
        v2_to_v1(black_box(facts))
            .iter()
            .next()
            .and_then(|form| form.payload())
    };
    group.bench_function("log to v1", |b| b.iter(payload));
    let payload = payload().expect("a log has a v1 form");
    let parse = || Pushed::parse(black_box(payload.bytes()), Limits::default()).expect("complete");
    group.bench_function("v1 log received", |b| b.iter(parse));
    let pushed = parse();
    group.bench_function("v1 log to v2", |b| {
        b.iter(|| v1_to_v2(&black_box(&pushed).envelope(), TagMap::Preferred));
    });
    group.finish();
}

criterion_group!(benches, parsing, building, hashing, converting);
criterion_main!(benches);
