//! Messages to send and requests to subscribe with.

#![allow(dead_code, reason = "each test binary uses some of it")]

use loggregator::{Limits, Message, v2};
use prost::Message as _;
use router::{Batch, Options, RepeaterThread, Router};

/// A router whose repeater runs on a thread of its own.
pub fn start(options: Options) -> (Router, RepeaterThread) {
    let (router, repeater) = Router::new(options).expect("a router");
    (router, repeater.spawn_thread().expect("a thread"))
}

pub fn message(envelopes: impl IntoIterator<Item = v2::Envelope>) -> Message {
    let batch = v2::EnvelopeBatch {
        batch: envelopes.into_iter().collect(),
    };
    Message::parse(&batch.encode_to_vec(), Limits::default()).expect("a well-formed batch")
}

/// A log of `source_id` that carries a number.
pub fn log(source_id: &str, number: u64) -> v2::Envelope {
    v2::Envelope {
        timestamp: number as i64,
        source_id: source_id.to_owned(),
        message: Some(v2::envelope::Message::Log(v2::Log {
            payload: b"payload".to_vec(),
            r#type: 0,
        })),
        ..Default::default()
    }
}

pub fn counter(source_id: &str, name: &str) -> v2::Envelope {
    v2::Envelope {
        source_id: source_id.to_owned(),
        message: Some(v2::envelope::Message::Counter(v2::Counter {
            name: name.to_owned(),
            delta: 1,
            total: 0,
        })),
        ..Default::default()
    }
}

/// Every log of `source_id`; an empty one means any.
pub fn logs_of(source_id: &str) -> v2::EgressBatchRequest {
    request([v2::Selector {
        source_id: source_id.to_owned(),
        message: Some(v2::selector::Message::Log(v2::LogSelector {})),
    }])
}

pub fn counters() -> v2::EgressBatchRequest {
    request([v2::Selector {
        source_id: String::new(),
        message: Some(v2::selector::Message::Counter(
            v2::CounterSelector::default(),
        )),
    }])
}

pub fn request(selectors: impl IntoIterator<Item = v2::Selector>) -> v2::EgressBatchRequest {
    v2::EgressBatchRequest {
        selectors: selectors.into_iter().collect(),
        ..Default::default()
    }
}

/// The envelopes of a batch, decoded.
pub fn envelopes(batch: &Batch) -> Vec<v2::Envelope> {
    let mut bytes = Vec::with_capacity(batch.byte_len());
    batch.append_to(&mut bytes);
    v2::EnvelopeBatch::decode(&*bytes)
        .expect("a well-formed batch")
        .batch
}
