//! The reference's routing (`vectors/routing.jsonl`), through selectors, facts and the real
//! subscriber tree. One difference is meant: a stream gets an envelope once, however many of its
//! selectors match, so counts above 1 are 1.

mod support;

use std::collections::BTreeMap;
use std::hash::Hash;

use loggregator::{Limits, Message, selectors_to_interest, v2};
use prost::Message as _;
use pubsub::{Event, Interest, PubSub};
use serde_json::Value;
use support::{bytes, cases};

const VECTORS: &str = include_str!("vectors/routing.jsonl");

/// How often the one envelope of a case is published: enough that each member of a group of two or
/// three gets it at times, up to one failure in 10^15 runs.
const ROUNDS: usize = 100;

fn api(name: &str) -> impl Iterator<Item = Value> {
    cases(VECTORS)
        .into_iter()
        .filter(move |case| case["api"] == name)
}

#[test]
fn v2() {
    let mut seen = 0;
    for case in api("v2") {
        let message =
            Message::parse_envelope(&bytes(&case, "publish_b64"), Limits::default()).unwrap();
        check(&case, &message.facts(0), |request| {
            let request = v2::EgressBatchRequest::decode(request).unwrap();
            selectors_to_interest(&request)
        });
        seen += 1;
    }
    assert_eq!(seen, 35);
}

/// Subscribes and unsubscribes as the case says, publishes `event`, and compares who got it.
fn check<K>(case: &Value, event: &impl Event<K>, interest: impl Fn(&[u8]) -> Interest<K>)
where
    K: Hash + Eq + Clone + Send + Sync + 'static,
{
    let tree = PubSub::new();
    let mut subscriptions = BTreeMap::new();
    for subscriber in case["subscribe"].as_array().unwrap() {
        let id = subscriber["id"].as_str().unwrap().to_owned();
        let interest = interest(&bytes(subscriber, "request_b64"));
        let subscription = tree.subscribe(id.clone(), interest);
        assert!(subscriptions.insert(id, subscription).is_none(), "{case}");
    }
    for id in case["unsubscribe"].as_array().into_iter().flatten() {
        drop(subscriptions.remove(id.as_str().unwrap()).unwrap());
    }

    let mut totals = BTreeMap::<String, usize>::new();
    for round in 0..ROUNDS {
        let mut copies = BTreeMap::<String, usize>::new();
        tree.publish(event, |id: &String| {
            *copies.entry(id.clone()).or_default() += 1
        });
        for (id, count) in case["always"].as_object().unwrap() {
            let expected = count.as_u64().unwrap().min(1) as usize;
            assert_eq!(
                copies.remove(id).unwrap_or(0),
                expected,
                "{id}, round {round}: {case}"
            );
        }
        for group in case["random"].as_array().into_iter().flatten() {
            let members = group["members"].as_array().unwrap();
            let mut sum = 0;
            for member in members {
                let member = member.as_str().unwrap().to_owned();
                let count = copies.remove(&member).unwrap_or(0);
                *totals.entry(member).or_default() += count;
                sum += count;
            }
            assert_eq!(
                sum as u64,
                group["sum"].as_u64().unwrap(),
                "round {round}: {case}"
            );
        }
        assert_eq!(
            copies,
            BTreeMap::new(),
            "nobody else, round {round}: {case}"
        );
    }
    for (member, total) in totals {
        assert!(total > 0, "{member} never got one of {ROUNDS}: {case}");
    }
}

/// Field case P7.
#[test]
fn gauge_names_are_a_set() {
    use v2::selector::Message as Kind;
    let gauge = |names: &[&str]| {
        let metrics = names
            .iter()
            .map(|&name| (name.into(), v2::GaugeValue::default()))
            .collect();
        let message = Some(v2::envelope::Message::Gauge(v2::Gauge { metrics }));
        let envelope = v2::Envelope {
            message,
            ..Default::default()
        };
        Message::parse_envelope(&envelope.encode_to_vec(), Limits::default()).unwrap()
    };
    let gets = |selector: &[&str], envelope: &[&str]| {
        let names = selector.iter().map(|&name| name.into()).collect();
        let message = Some(Kind::Gauge(v2::GaugeSelector { names }));
        let selectors = vec![v2::Selector {
            source_id: String::new(),
            message,
        }];
        let request = v2::EgressBatchRequest {
            selectors,
            ..Default::default()
        };
        let tree = PubSub::new();
        let _subscription = tree.subscribe((), selectors_to_interest(&request));
        let mut got = false;
        tree.publish(&gauge(envelope).facts(0), |()| got = true);
        got
    };
    assert!(gets(&["cpu", "memory"], &["memory", "cpu"]));
    assert!(!gets(&["cpu", "memory"], &["cpu"]));
    assert!(!gets(&["cpu", "memory"], &["cpu", "memory", "disk"]));
    assert!(!gets(&["cpu", "cpu"], &["cpu"]));
    assert!(gets(&[], &["cpu", "memory", "disk"]));
    assert!(gets(&[], &[]));
    assert!(gets(&[""], &[""]), "a metric may have an empty name");
    assert!(!gets(&[""], &[]));
    let many: Vec<String> = (0..100).map(|i| format!("metric-{i}")).collect();
    let many: Vec<&str> = many.iter().map(|name| &**name).collect();
    let reversed: Vec<&str> = many.iter().rev().copied().collect();
    assert!(gets(&reversed, &many));
    assert!(!gets(&many[1..], &many));
}

/// Field case P8.
#[test]
fn requests_that_select_nothing_are_subscriptions() {
    let typeless = v2::Selector {
        source_id: "a".into(),
        message: None,
    };
    for selectors in [vec![], vec![typeless]] {
        let request = v2::EgressBatchRequest {
            selectors,
            ..Default::default()
        };
        let tree = PubSub::new();
        let _subscription = tree.subscribe((), selectors_to_interest(&request));
        assert_eq!(tree.len(), 1);
        let message =
            Message::parse_envelope(&[0x12, 1, b'a', 0x22, 0], Limits::default()).unwrap();
        let published = tree.publish(&message.facts(0), |()| panic!("selects nothing"));
        assert_eq!(published.delivered, 0);
    }
}
